package signature_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/signature"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// A test vector of Standard Webhooks.
const (
	secret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	id        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	timestamp = "1614265330"
	payload   = `{"test": 2432232314}`
	signed    = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func TestVector(t *testing.T) {
	got, err := signature.Sign([]byte(secret), id, timestamp, []byte(payload))
	if err != nil || got != signed {
		t.Errorf("Sign = %s, %v", got, err)
	}
}

// The public library accepts these signatures, and makes the same ones.
func TestLibrary(t *testing.T) {
	for _, size := range []int{24, 32, 63, 64} {
		key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(size)}, size))
		library, err := standardwebhooks.NewWebhook("whsec_" + key)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		ours, err := signature.Sign([]byte("whsec_"+key), id, strconv.FormatInt(at.Unix(), 10), []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := library.Sign(id, at, []byte(payload))
		if err != nil || theirs != ours {
			t.Errorf("%d bytes: ours %s, theirs %s, %v", size, ours, theirs, err)
		}
		header := http.Header{}
		header.Set(standardwebhooks.HeaderWebhookID, id)
		header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
		header.Set(standardwebhooks.HeaderWebhookSignature, ours)
		if err := library.Verify([]byte(payload), header); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestSecrets(t *testing.T) {
	text := func(size int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, size)) }
	for _, bad := range []string{"", "whsec_", secret[6:], "whsec-" + secret[6:], secret + "=", secret[:len(secret)-1],
		text(23), text(65), secret[:10] + "\n" + secret[10:], secret + "\n", "whsec_*fKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		if got, err := signature.Sign([]byte(bad), id, timestamp, nil); !errors.Is(err, signature.ErrSecret) || got != "" {
			t.Errorf("%q: %q, %v", bad, got, err)
		}
		if err := signature.Check([]byte(bad)); !errors.Is(err, signature.ErrSecret) {
			t.Errorf("Check(%q) = %v", bad, err)
		}
	}
	if err := signature.Check([]byte(secret)); err != nil {
		t.Error(err)
	}
}

func TestMatch(t *testing.T) {
	for list, want := range map[string]bool{
		signed:                                  true,
		"v1,AAAA " + signed:                     true,
		signed + " v1a,AAAA":                    true,
		" " + signed:                            true,
		"":                                      false,
		"v1,":                                   false,
		signed[3:]:                              false,
		"v2" + signed[2:]:                       false,
		signed[:len(signed)-1]:                  false,
		signed + ",":                            false,
		strings.Repeat("x ", 2000) + signed:     true,
		strings.Repeat("x ", 2048) + signed:     false,
		strings.ToLower(signed) + "\t" + signed: false,
	} {
		if got := signature.Match(list, signed); got != want {
			t.Errorf("Match(%.100q) = %t", list, got)
		}
	}
}
