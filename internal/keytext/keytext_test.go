package keytext_test

import (
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/keytext"
	"github.com/google/uuid"
)

func TestParse(t *testing.T) {
	const prefix = "vk_test_"
	id := uuid.New()
	text, secret := keytext.New(prefix, id)
	if short, got, ok := keytext.Parse(prefix, text); !ok || short != keytext.Short(id) || got != secret || len(secret) != 43 {
		t.Fatalf("%q: %q %q %v", text, short, got, ok)
	}

	last := byte('0')
	if text[len(text)-1] == last {
		last = '1'
	}
	for name, bad := range map[string]string{
		"empty":             "",
		"another prefix":    "vk_live_" + strings.TrimPrefix(text, prefix),
		"too short":         text[:len(text)-1],
		"too long":          text + "0",
		"another checksum":  text[:len(text)-1] + string(last),
		"another separator": strings.Replace(text, "_"+secret, "-"+secret, 1),
	} {
		if _, _, ok := keytext.Parse(prefix, bad); ok {
			t.Errorf("%s: %q is accepted", name, bad)
		}
	}
}

// TestForm: the format must not change, since issued keys stay valid.
func TestForm(t *testing.T) {
	const text = "vk_test_0123abcd_0000000000000000000000000000000000000000000"
	if _, _, ok := keytext.Parse("vk_test_", text+"CHECKS"); ok {
		t.Error("accepted with a wrong checksum")
	}
	short, secret, ok := keytext.Parse("vk_test_", text+"0WTl4x")
	if !ok || short != "0123abcd" || secret != strings.Repeat("0", 43) {
		t.Error(short, secret, ok)
	}
}
