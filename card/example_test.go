package card_test

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/cardvault/cardvault/card"
)

// A number prints masked. A program that needs the digits exposes them, and wipes the
// number afterwards.
func ExamplePAN_Expose() {
	pan := card.NewPAN([]byte("4242424242424242"))
	defer pan.Wipe()
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	log.Info("card", "number", pan)
	fmt.Printf("%v %+v %#v\n", pan, pan, pan)

	pan.Expose(func(digits []byte) { fmt.Println(len(digits), "digits") })
	// Output:
	// level=INFO msg=card number=424242******4242
	// 424242******4242 424242******4242 424242******4242
	// 16 digits
}
