package cardvault_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/cardvault/cardvault/webhook"
	"github.com/google/uuid"
)

// TestNeglect: work overdue for a minute causes a warning once an hour.
func TestNeglect(t *testing.T) {
	for name, test := range map[string]struct {
		care func(l *lab) // takes care of the work
		want int
	}{
		"no work":            {func(*lab) {}, 1},
		"Drain, once":        {func(l *lab) { l.drain() }, 1},
		"Run":                {func(l *lab) { goRun(l, l.Vault) }, 0},
		"Run, elsewhere":     {func(l *lab) { goRun(l, l.open()) }, 0},
		"Run, after a while": {func(l *lab) { time.Sleep(50 * time.Second); goRun(l, l.Vault) }, 0},
		"closed":             {func(l *lab) { l.must(l.Close()) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, nil, func(l *lab) {
				l.imports(visa)
				test.care(l)
				for range 5 {
					time.Sleep(50 * time.Second)
					if name != "closed" {
						l.imports(visa)
					}
				}
				synctest.Wait()
				if got := strings.Count(l.log.text(), "work is overdue"); got != test.want {
					l.Errorf("%d warnings, want %d: %s", got, test.want, l.log.text())
				}
			})
		})
	}
}

// TestNeglectAfterDrain: work that is overdue a minute after the last Drain causes a warning.
func TestNeglectAfterDrain(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		warned := func(want int, when string) {
			l.Helper()
			synctest.Wait()
			if got := strings.Count(l.log.text(), "work is overdue"); got != want {
				l.Errorf("%s: %d warnings, want %d", when, got, want)
			}
		}
		for range 10 {
			l.imports(visa)
			time.Sleep(50 * time.Second)
			l.drain()
		}
		warned(0, "with a Drain in each minute")

		l.imports(visa)
		time.Sleep(50 * time.Second)
		warned(0, "before a minute has passed")
		time.Sleep(time.Minute)
		warned(1, "after the last Drain")

		for range 5 {
			l.drain()
			l.imports(visa)
			time.Sleep(2 * time.Minute)
		}
		warned(1, "within the hour")
		time.Sleep(time.Hour)
		warned(2, "an hour later")
	})
}

// TestNeglectAgain: the warning is repeated while the work is not done, even after a Run has
// ended.
func TestNeglectAgain(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		warned := func(want int, when string) {
			l.Helper()
			synctest.Wait()
			if got := strings.Count(l.log.text(), "work is overdue"); got != want {
				l.Errorf("%s: %d warnings, want %d", when, got, want)
			}
		}
		l.imports(visa)
		time.Sleep(2 * time.Minute)
		warned(1, "at first")
		time.Sleep(3 * time.Hour)
		warned(4, "three hours later")

		stop := goRun(l, l.Vault)
		time.Sleep(10 * time.Minute)
		warned(4, "with Run")
		stop()
		l.imports(visa)
		time.Sleep(2 * time.Minute)
		warned(5, "two minutes after Run")

		stop = goRun(l, l.Vault)
		time.Sleep(2 * time.Hour)
		stop()
		time.Sleep(5 * time.Hour)
		warned(5, "before the network tokens are reconciled")
		time.Sleep(30 * time.Hour)
		synctest.Wait()
		if got := strings.Count(l.log.text(), "work is overdue"); got <= 5 {
			l.Errorf("%d warnings about work left by Run", got)
		}
	})
}

// goRun runs a vault until the test ends or the returned function is called.
func goRun(l *lab, v *cardvault.Vault) (stop func()) {
	ctx, cancel := context.WithCancel(l.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.must(v.Run(ctx))
	}()
	stop = func() {
		cancel()
		<-ended
	}
	l.Cleanup(stop)
	return stop
}

// TestNothingGiven: a missing argument is an error, not a panic.
func TestNothingGiven(t *testing.T) {
	keys := newKey(t)
	for name, open := range map[string]func() (*cardvault.Vault, error){
		"no store":   func() (*cardvault.Vault, error) { return cardvault.New(t.Context(), nil, keys, nil) },
		"no keyring": func() (*cardvault.Vault, error) { return cardvault.New(t.Context(), memstore.New(), nil, nil) },
		"a nil store": func() (*cardvault.Vault, error) {
			return cardvault.New(t.Context(), (*memstore.Store)(nil), keys, nil)
		},
		"a nil wrapper": func() (*cardvault.Vault, error) {
			return cardvault.New(t.Context(), memstore.New(), cardvault.WrappedBy((*fakeKMS)(nil)), nil)
		},
		"no wrapper": func() (*cardvault.Vault, error) {
			return cardvault.New(t.Context(), memstore.New(), cardvault.WrappedBy(nil), nil)
		},
		"an empty keyring": func() (*cardvault.Vault, error) {
			return cardvault.New(t.Context(), memstore.New(), new(cardvault.Keyring), nil)
		},
		"no keyring for a folder": func() (*cardvault.Vault, error) { return cardvault.Open(t.Context(), t.TempDir(), nil, nil) },
	} {
		if v, err := open(); v != nil || err == nil || !strings.Contains(err.Error(), "need") {
			t.Errorf("%s: %v", name, err)
		}
	}

	for option, opts := range map[string]*cardvault.Options{
		"Options.BIN":      {BIN: (*noBIN)(nil)},
		"Options.Network":  {Network: (*simnet.Network)(nil)},
		"Options.PPAN":     {PPAN: (*payone.Client)(nil)},
		"Options.Webhooks": {Webhooks: (*webhook.Sender)(nil)},
		"Options.Events":   {Events: (*vaulttest.Recorder)(nil)},
		"Options.IDV":      {IDV: struct{ idv.Provider }{}},
	} {
		if v, err := cardvault.New(t.Context(), memstore.New(), keys, opts); v != nil || err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: %v", option, err)
		}
	}

	inLab(t, nil, func(l *lab) {
		if _, err := l.Import(l.Context(), cardvault.Card{}, nil); len(cardvault.FieldErrors(err)) == 0 {
			l.Errorf("Import of no card = %v", err)
		}
		if err := l.Notify(l.Context(), nil); len(cardvault.FieldErrors(err)) == 0 {
			l.Errorf("Notify of nothing = %v", err)
		}
		if _, err := l.Tokenize(l.Context(), cardvault.SessionID{}, cardvault.Card{}); err == nil {
			l.Error("Tokenize of nothing succeeds")
		}
		if _, err := l.RequestPaymentData(l.Context(), uuid.Nil, cardvault.PaymentRequest{}); err == nil {
			l.Error("RequestPaymentData of nothing succeeds")
		}
	})
}

// TestNotEnabled: ErrNotEnabled names the missing option.
func TestNotEnabled(t *testing.T) {
	inLab(t, nil, func(l *lab) {
		id := l.become(active)
		_, suspended := l.SuspendNetworkToken(l.Context(), id)
		_, obtained := l.ObtainPPAN(l.Context(), id, portal())
		_, updated := l.UpdateWebhook(l.Context(), uuid.New(), cardvault.WebhookUpdate{})
		for option, err := range map[string]error{
			"Options.Network":  suspended,
			"Options.PPAN":     obtained,
			"Options.Webhooks": updated,
		} {
			if !errors.Is(err, cardvault.ErrNotEnabled) || !strings.Contains(err.Error(), option) {
				l.Errorf("%v, want ErrNotEnabled with %s", err, option)
			}
		}
	})
}
