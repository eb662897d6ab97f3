package webhook_test

import (
	"fmt"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/webhook"
)

// A vault that delivers events to webhooks. The sender must be closed after the vault.
func ExampleNew() {
	sender := webhook.New(nil)
	defer sender.Close()
	opts := &cardvault.Options{Webhooks: sender} // of cardvault.Open

	for _, url := range []string{"https://shop.example/hook", "http://shop.example/hook", "https://10.0.0.1/hook"} {
		fmt.Println(opts.Webhooks.Check(&cardvault.Target{URL: url}))
	}
	// Output:
	// <nil>
	// must be https
	// must have a public host
}

// A sandbox may deliver to its own machine.
func ExampleOptions() {
	sender := webhook.New(&webhook.Options{AllowPrivateTargets: true})
	defer sender.Close()
	fmt.Println(sender.Check(&cardvault.Target{URL: "http://localhost:8080/hook"}))
	// Output: <nil>
}
