package cardvault

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/internal/adapter"
	"github.com/cardvault/cardvault/internal/addresses"
	"github.com/cardvault/cardvault/internal/enum"
	"github.com/cardvault/cardvault/internal/use"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/google/uuid"
)

// A Mode says whether a vault may hold real cards. It is fixed when the vault
// is made.
type Mode uint8

const (
	Live    Mode = iota // real cards
	Sandbox             // test cards; new accounts have every approval
)

// MarshalText returns the name, or an error for a number without one.
func (m Mode) MarshalText() ([]byte, error) { return enum.Text(m, Mode.String) }

// UnmarshalText reads what MarshalText writes.
func (m *Mode) UnmarshalText(text []byte) error { return enum.Read(text, m, Mode.String) }

// String returns "live" or "sandbox".
func (m Mode) String() string { return modeNames.Of(uint8(m)) }

var modeNames = enum.Names{Live: "live", Sandbox: "sandbox"}

// Options are the optional parts of a vault. The zero value is a live vault
// with the defaults below.
type Options struct {
	Mode Mode // Live unless set

	// BIN returns the bank, segment, type and country of a card. If nil, only the scheme is
	// known.
	BIN network.BINProvider

	// Network issues network tokens. If nil, they are not available. Its optional
	// capabilities are found when the vault is opened: see [network.Info].
	Network network.Provider

	// NetworkTimeout bounds each call to the network, 100 milliseconds to 30
	// seconds. Defaults to 10 seconds.
	NetworkTimeout time.Duration

	// NetworkRate limits the background calls of this process to the network, in requests a
	// second for each scheme. Queues are shuffled, so that an imported batch of one issuer
	// does not arrive as a burst. The calls of RequestPaymentData do not count. Defaults to
	// 100 in live mode and to no bound in sandbox mode.
	NetworkRate float64

	// ProvisionWait limits how long Provision waits for a state other than pending, up to
	// 10 seconds. [Vault.Run] must be running. A repetition under an idempotency key
	// returns the token as it was before the wait. Defaults to not at all.
	ProvisionWait time.Duration

	// PPAN gives pseudo card numbers. If nil, ObtainPPAN returns ErrNotEnabled.
	PPAN ppan.Provider

	// PPANTimeout bounds each call to PPAN, 100 milliseconds to 1 minute. Defaults
	// to 10 seconds.
	PPANTimeout time.Duration

	// IDV identifies cardholders in sessions. If nil, they are not identified.
	IDV idv.Provider

	// IDVTimeout bounds each call to IDV, 100 milliseconds to 30 seconds. Defaults
	// to 10 seconds.
	IDVTimeout time.Duration

	// Updater reports new numbers and expiries of cards that issuers have replaced, to
	// [Vault.Run]. If nil, no card is submitted.
	Updater updater.Provider

	// UpdaterPeriod is the time after which a card is submitted to Updater again, 1 hour to
	// 90 days, and the longest time between a submission and the expiry of the card. A new
	// card is submitted within a thirtieth of it. Defaults to 30 days.
	UpdaterPeriod time.Duration

	// CryptoPeriod is the age at which a key is overdue, a day to ten years: see PCI DSS 4.0.1,
	// 3.7.4. [Vault.KeyReport] shows it, and nothing is refused. Run warns once an hour of a key
	// under which records are sealed, and of one of a [KeySeries] but SeriesID. Defaults to 365 days.
	CryptoPeriod time.Duration

	// Purposes are the names of what the program uses stored cards for, see [Vault.Use]: 1
	// to 40 of a-z, 0-9, "_" and "-", beginning with a letter. If empty, Use returns
	// ErrNotEnabled.
	Purposes []string

	// SecurityCodeTTL limits how long a security code is kept, 1 to 15 minutes. Defaults to
	// 10 minutes.
	SecurityCodeTTL time.Duration

	// SecurityCodeCapacity limits the security codes that are kept at a time, at most a
	// hundred million. Beyond it the least recently used is dropped early, with a warning
	// in the log. One takes about 500 bytes. Defaults to 65,536. Without effect if Codes is
	// set.
	SecurityCodeCapacity int

	// Codes keeps security codes. All vaults on one store need the same cache: with
	// separate caches, one vault neither has nor erases the codes of the other. Reads and
	// writes have 50 milliseconds: a code that takes longer is treated as absent. Calls
	// that erase or refresh a code wait for a second. A deletion succeeds even then, and a
	// code that it could not erase expires by itself. The vault does not close the cache.
	// If nil, codes are in the memory of this process, under a key that ends with it.
	Codes store.CodeCache

	// Events receives the events of tokens, and the end of accounts if it is an [AccountSink]. If nil,
	// only webhooks receive events.
	Events EventSink

	// Webhooks delivers the events of tokens to the webhooks of their accounts: package
	// webhook has a Sender over HTTP. If nil, webhooks cannot be registered, and pending
	// deliveries wait for a vault on the store that has one.
	Webhooks Sender

	// PaymentDataRetention limits how long encrypted payment data can be read again, 1
	// minute to 30 days. Defaults to 24 hours; with NoRetention it is only in the answer of
	// RequestPaymentData.
	PaymentDataRetention time.Duration

	// BaseURL is where the REST API is reached, such as "https://vault.example", for
	// Token.CardArtURL. If empty, CardArtURL is empty.
	BaseURL string

	// IINLength is the number of digits of Token.IIN, 6 or 8. 8 applies to card numbers of 16
	// digits and more. Defaults to 6.
	IINLength int

	// AllowNonLuhn stores numbers that fail the Luhn check, as closed-loop
	// ranges have them.
	AllowNonLuhn bool

	// SessionTTL limits how long a session lives, 1 minute to 1 hour. Defaults to 15
	// minutes.
	SessionTTL time.Duration

	// Schemes are the schemes accepted in sessions; an Import accepts any. If empty, all
	// are.
	Schemes []card.Scheme

	// RequireSessionBinding refuses payloads of CompleteSession whose header does not name
	// the session they are for, as sid. Otherwise an attacker who sees a payload before it is
	// used can complete another session with it, even one of another account. The card-entry
	// component sends it. Defaults to false: other clients of the protocol send none.
	RequireSessionBinding bool

	// Replicas is the number of vaults that work on the store, in this process and others,
	// 1 to 1000. Each counts separately how many card numbers callers pass in, see
	// ErrTooManyNumbers, and enforces its share of the limit, but at least one a day. So more
	// replicas than the limit allow one each. Counts end with the process. Defaults to 1.
	Replicas int

	// OnSuspicion is called when the limit of ErrTooManyNumbers refuses a card number. It
	// is called once a day for each account and masked number, and for at most 64 of an
	// account and 16,384 of all. It is called in the call that was refused, concurrently,
	// and should return soon. If nil, there is only a warning in the log.
	OnSuspicion func(context.Context, Suspicion)

	// IdempotencyTTL limits how long a call can be repeated under its idempotency key, 1
	// hour to 7 days. Defaults to 24 hours.
	IdempotencyTTL time.Duration

	// Quotas bound what one account can have, unless the operator has set others for it:
	// [Vault.UpdateAccount].
	Quotas Quotas

	// Audit configures the audit log, which has a record of each call that writes, uses a card
	// or is refused. If nil, the vault has none.
	Audit *AuditOptions

	// Thaw is the ID of the [RestoreReport] of a restored vault, which is opened and is not frozen
	// from then on. It has no effect on any other vault: one that is restored later has another
	// ID. Set it once the vault that was backed up works no more. It may also be the ID of a
	// [Move] that has not ended, which it takes back in the former place. Defaults to none.
	Thaw uuid.UUID

	// Anchor keeps outside of the store how far the vault has come: then Open and New notice a
	// store that was rolled back. If nil, a rollback is not noticed.
	Anchor Anchor

	// AcceptRollback is the ID of a [RollbackError], with which the vault is opened all the same. It
	// names one difference between store and anchor, and has no effect on any other. Defaults to
	// none.
	AcceptRollback uuid.UUID

	// Logger receives background failures, and every write at debug level. Nothing
	// sensitive is logged. Defaults to none.
	Logger *slog.Logger

	powers adapter.Powers // of Network
}

// Limits and times of a vault.
const (
	DefaultLimit = 50        // items on a page
	MaxLimit     = 500       // items on a page
	MaxPage      = 1<<31 - 1 // number of a page

	MaxTokenTTL    = 30 * 24 * time.Hour // of a token that expires
	MaxAPIKeyTTL   = 90 * 24 * time.Hour // of an API key that expires
	MaxAPIKeyDepth = store.MaxLookups    // keys in a chain, each made by the one before: 8

	// MaxWebhooks is the largest Quotas.Webhooks: an event is written in one transaction
	// with its delivery to each.
	MaxWebhooks = 64

	MaxProviderAccounts = 16 // of an account

	MaxAddressRanges = addresses.Max // of an API key: 32

	// SecretOverlap is the time before a rotated payment secret is used, so that receivers
	// can load it.
	SecretOverlap = 24 * time.Hour

	// WebhookSecretOverlap is how long a rotated signing secret continues to sign, beside
	// newer ones.
	WebhookSecretOverlap = 24 * time.Hour

	// NoRetention as Options.PaymentDataRetention keeps no encrypted payment data.
	NoRetention time.Duration = -1
)

// withDefaults returns a copy of o, which may be nil, with its defaults, or the
// first thing that is wrong with it.
func (o *Options) withDefaults() (Options, error) {
	opts := Options{}
	if o != nil {
		opts = *o
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}

	for _, complete := range []func(*Options) error{
		(*Options).completeMode,
		(*Options).completeDurations,
		(*Options).completeNetwork,
		(*Options).checkAdapters,
		(*Options).completeLimits,
		(*Options).completeBaseURL,
		(*Options).completeAudit,
	} {
		if err := complete(&opts); err != nil {
			return opts, err
		}
	}
	return opts, nil
}

func (o *Options) completeMode() error {
	if o.Mode > Sandbox {
		return errors.New("cardvault: Options.Mode must be Live or Sandbox")
	}
	switch o.IINLength {
	case 0:
		o.IINLength = 6
	case 6, 8:
	default:
		return errors.New("cardvault: Options.IINLength must be 6 or 8")
	}
	return nil
}

func (o *Options) completeDurations() error {
	for _, d := range []struct {
		name           string
		value          *time.Duration
		low, def, high time.Duration
	}{
		{"SessionTTL", &o.SessionTTL, time.Minute, 15 * time.Minute, time.Hour},
		{"SecurityCodeTTL", &o.SecurityCodeTTL, minSecurityCodeTTL, 10 * time.Minute, 15 * time.Minute},
		{"PPANTimeout", &o.PPANTimeout, 100 * time.Millisecond, 10 * time.Second, time.Minute},
		{"IDVTimeout", &o.IDVTimeout, 100 * time.Millisecond, 10 * time.Second, 30 * time.Second},
		{"UpdaterPeriod", &o.UpdaterPeriod, time.Hour, 30 * 24 * time.Hour, 90 * 24 * time.Hour},
		{"CryptoPeriod", &o.CryptoPeriod, 24 * time.Hour, 365 * 24 * time.Hour, 10 * 365 * 24 * time.Hour},
		{"NetworkTimeout", &o.NetworkTimeout, 100 * time.Millisecond, 10 * time.Second, 30 * time.Second},
		{"ProvisionWait", &o.ProvisionWait, 0, 0, 10 * time.Second},
		{"PaymentDataRetention", &o.PaymentDataRetention, time.Minute, 24 * time.Hour, 30 * 24 * time.Hour},
		{"IdempotencyTTL", &o.IdempotencyTTL, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}

		if d.value == &o.PaymentDataRetention && *d.value == NoRetention {
			continue
		}
		if *d.value < d.low || *d.value > d.high {
			return fmt.Errorf("cardvault: Options.%s must be between %v and %v", d.name, d.low, d.high)
		}
	}
	return nil
}

func (o *Options) completeNetwork() error {
	if o.NetworkRate == 0 && o.Mode == Live {
		o.NetworkRate = 100
	}
	if !(o.NetworkRate >= 0 && o.NetworkRate <= 1e6) {
		return errors.New("cardvault: Options.NetworkRate must be between 0 and a million")
	}
	return nil
}

// checkAdapters refuses adapters and purposes that a vault of the mode cannot have, and
// finds what the network can do.
func (o *Options) checkAdapters() (err error) {
	if err := adapter.Set(*o); err != nil {
		return err
	}
	if o.Purposes, err = use.Purposes(o.Purposes); err != nil {
		return err
	}
	live := o.Mode == Live
	o.powers, err = adapter.Network(o.Network, live)
	return errors.Join(err, adapter.PPAN(o.PPAN, live), adapter.IDV(o.IDV, live), adapter.Updater(o.Updater, live))
}

func (o *Options) completeLimits() error {
	if err := o.Quotas.withDefaults(); err != nil {
		return err
	}

	if o.SecurityCodeCapacity == 0 {
		o.SecurityCodeCapacity = 1 << 16
	}
	if n := o.SecurityCodeCapacity; n < 1 || n > 1e8 {
		return errors.New("cardvault: Options.SecurityCodeCapacity must be between 1 and a hundred million")
	}

	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Replicas < 1 || o.Replicas > 1000 {
		return errors.New("cardvault: Options.Replicas must be between 1 and 1000")
	}
	return nil
}

func (o *Options) completeBaseURL() error {
	if o.BaseURL != "" {
		u, err := url.Parse(o.BaseURL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
			strings.ContainsAny(o.BaseURL, "?#\"'<>\\ ") {
			return errors.New("cardvault: Options.BaseURL must be an http or https URL without user, query and fragment")
		}
	}
	o.BaseURL = strings.TrimSuffix(o.BaseURL, "/")
	return nil
}
