package vaulttest_test

import (
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/vaulttest"
)

// The events that a program receives about its stored cards.
func ExampleRecorder() {
	_ = func(t *testing.T, card cardvault.Card) {
		var events vaulttest.Recorder
		v := vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Sandbox, Events: &events})
		token, err := v.Import(t.Context(), card, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Events() {
			if e.Type != receive.TokenCreated || e.TokenID != token.ID {
				t.Errorf("event %v of token %v", e.Type, e.TokenID)
			}
		}
	}
}
