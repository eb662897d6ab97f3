package cardvault

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/keytext"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/listing"
	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/internal/quota"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Webhook is an endpoint of an integrator to which the events of an account are
// delivered, as Standard Webhooks 1.0 describes.
type Webhook struct {
	ID        uuid.UUID `wire:"id"`
	CreatedAt time.Time `wire:"created_at"`
	URL       string    `wire:"url"` // https, in a sandbox also http; without user and fragment

	// Description is for people: 1 to 255 characters, or "" for none.
	Description string `wire:"description"`

	// Events are the types that are delivered, in the order created,
	// updated, deleted. Never empty.
	Events []receive.EventType `wire:"events"`

	// LegacyHMAC adds the header x-hmac-signature to deliveries, under the oldest active
	// secret. The receiver must change to the next one before that expires.
	LegacyHMAC bool `wire:"legacy_hmac"`

	// Disabled reports whether deliveries have stopped, and DisabledReason the reason.
	// Deliveries that become due meanwhile fail, and can be redelivered.
	Disabled       bool           `wire:"status,enabled|disabled"`
	DisabledReason DisabledReason `wire:"disabled_reason"`

	// Secret is the signing secret, only from the CreateWebhook or RotateWebhookSecret that
	// has made it: a replay has none.
	Secret   receive.WebhookSecret
	Replayed bool // the call was made before: see the package comment

	row     uuid.UUID
	version uint64          // of its record, when it was read
	since   time.Time       // when it was enabled, or got its URL
	set     uuid.UUID       // of secrets
	secrets []signingSecret // oldest first
}

// A DisabledReason says why a webhook is disabled, "" while it is not.
type DisabledReason string

const (
	DisabledRequested DisabledReason = "requested"    // by UpdateWebhook
	DisabledGone      DisabledReason = outbox.Gone    // it has answered 410
	DisabledFailing   DisabledReason = outbox.Failing // five days without success
)

// A signingSecret signs deliveries until a time, zero for ever.
type signingSecret struct {
	value receive.WebhookSecret
	until time.Time
}

// A Sender delivers events to webhooks, one attempt a call. Package webhook is one
// over HTTP. Its methods are called concurrently.
type Sender interface {
	// Check returns nil if deliveries may go to t, else the reason, as the end of a sentence
	// that begins with the name of the field, without the URL. It is called when a webhook
	// gets its URL. It does no I/O: Send checks where a name leads.
	Check(t *Target) error

	// Send makes one attempt. It has the deadline of ctx and bounds what it reads. An error
	// says why there is no intelligible answer; it never quotes the answer.
	Send(ctx context.Context, d *Delivery) (*SendResult, error)
}

// A Target is the address of a webhook, and its account.
type Target struct {
	URL     string    // of any text
	Account uuid.UUID // whose webhook it is
}

// A Delivery is an event on its way to a webhook.
type Delivery struct {
	// Event is the payload; nil for a test, which has only ID and CreatedAt.
	Event *Event

	ID        uuid.UUID // of the event, the same at every attempt: webhook-id
	CreatedAt time.Time // of the event
	URL       string
	Secrets   []receive.WebhookSecret // each signs; 1 to 8, the oldest first
	Legacy    bool                    // Webhook.LegacyHMAC
}

// A SendResult is the answer of a webhook.
type SendResult struct {
	StatusCode int // of HTTP; 2xx is success

	// RetryAfter is the pause that the webhook asks for, 0 if it does not. With 429, 502,
	// 503 and 504 there is a pause all the same: for 5 s, 5 min and then 30 min each time,
	// until a delivery succeeds.
	RetryAfter time.Duration
}

// A WebhookOptions holds the optional fields of a new webhook.
type WebhookOptions struct {
	Events      []receive.EventType // empty: all
	Description string              // 1 to 255 characters; "": none
	LegacyHMAC  bool

	IdempotencyKey string // see the package comment
}

// A WebhookUpdate holds the changes to a webhook. A nil field stays as it is.
type WebhookUpdate struct {
	URL         *string
	Events      []receive.EventType // nil: stays; empty: all
	Description *string             // "": none
	LegacyHMAC  *bool
	Disabled    *bool
}

var errNoSender = notEnabled("Options.Webhooks is nil")

// Sender returns [Options.Webhooks], which may be nil.
func (v *Vault) Sender() Sender { return optionsOf(v).Webhooks }

// CreateWebhook registers an endpoint and returns it with its signing secret, which is
// shown only here. It receives the events that happen from now on. opts may be nil.
//
// Errors: FieldErrors; ErrQuotaExceeded; ErrIdempotencyKeyReused; ErrNotEnabled without
// [Options.Webhooks].
func (v *Vault) CreateWebhook(ctx context.Context, url string, opts *WebhookOptions) (_ *Webhook, err error) {
	defer v.doing(ctx, "create webhook", &err)
	if v.opts.Webhooks == nil {
		return nil, errNoSender
	}
	if opts == nil {
		opts = new(WebhookOptions)
	}
	asked := Webhook{URL: url, Events: opts.Events, Description: opts.Description, LegacyHMAC: opts.LegacyHMAC}
	if err := v.checkWebhook(&asked); err != nil {
		return nil, err
	}

	call := replay.Request{Operation: opCreateWebhook, Key: opts.IdempotencyKey, Body: asked.canonical}
	again := replay.Reopen(ctx, v.rows, kindWebhook, v.listedWebhook, func(w *Webhook) { w.Replayed = true })
	return once(ctx, v, call, again, func(c *replay.Call) (*Webhook, error) {
		w := asked
		return &w, w.store(ctx, v, c)
	})
}

// store completes and stores a new webhook, as the result of c.
func (w *Webhook) store(ctx context.Context, v *Vault, c *replay.Call) error {
	row, err := v.rows.NewRow()
	if err != nil {
		return err
	}
	w.row, w.ID, w.CreatedAt = row, v.rows.Mask(kindWebhook, row), rowkey.Time(row)
	w.since = w.CreatedAt
	w.Secret = newSigningSecret()
	w.secrets = []signingSecret{{value: w.Secret}}

	r := v.rows.NewRecord(kindWebhook, row)
	if err := v.sealWebhook(r, w); err != nil {
		return err
	}
	q, err := v.outbox.NewQueue(v.rows.ID, row)
	if err != nil {
		return err
	}
	if err := c.Seal(row[:], uuid.Nil); err != nil {
		return err
	}

	return tryAccount(ctx, v, opCreateWebhook, w.ID, func(a *Account) (func(store.Tx) error, error) {
		return func(tx store.Tx) error {
			limit := a.Quotas.Webhooks
			if err := quota.Room(tx, v.rows.ID, kindWebhook, limit); errors.Is(err, quota.ErrFull) {
				return &QuotaError{quotaWebhooks.name, limit}
			} else if err != nil {
				return err
			}
			tx.Put(r)
			tx.Put(q)
			return c.Put(tx)
		}, nil
	})
}

// canonical returns what must be the same for a CreateWebhook to be a repetition.
func (w *Webhook) canonical() []byte {
	b := tlv.Append(tlv.Append(nil, 1, w.URL), 2, w.Description)
	for _, e := range w.Events {
		b = tlv.Append(b, 3, string(e))
	}
	return tlv.AppendBool(b, 4, w.LegacyHMAC)
}

// Webhook returns a webhook. The error is ErrNotFound for an id that the account does
// not have.
func (v *Vault) Webhook(ctx context.Context, id uuid.UUID) (_ *Webhook, err error) {
	defer v.doing(ctx, "get webhook", &err, id)
	return v.webhookRow(ctx, v.rows.Unmask(kindWebhook, id))
}

// ListWebhooks returns one page of the webhooks of the account. opts may be nil. If webhooks
// are damaged, the page comes with an error: see [Page].
func (v *Vault) ListWebhooks(ctx context.Context, opts *ListOptions) (_ *Page[*Webhook], err error) {
	defer v.doing(ctx, "list webhooks", &err)
	return listedWebhooks(v, opts).page(ctx)
}

// AllWebhooks iterates over the webhooks of the account, as [Vault.All] does over tokens.
func (v *Vault) AllWebhooks(ctx context.Context, opts *ListOptions) iter.Seq2[*Webhook, error] {
	return iterate(ctx, v, func() *listed[*Webhook] { return listedWebhooks(v, opts) })
}

func listedWebhooks(v *Vault, opts *ListOptions) *listed[*Webhook] {
	return listedBy(opts, "list webhooks", listing.List[*Webhook]{Rows: v.rows, Kind: kindWebhook, Open: v.listedWebhook})
}

// UpdateWebhook changes a webhook and returns it. A webhook that is enabled again receives
// the events that happen from then on, and deliveries that were not due while it was
// disabled. Enabling it or a new URL ends a pause of the webhook.
//
// Errors: FieldErrors; ErrNotFound; ErrNotEnabled.
func (v *Vault) UpdateWebhook(ctx context.Context, id uuid.UUID, u WebhookUpdate) (_ *Webhook, err error) {
	defer v.doing(ctx, "update webhook", &err, id)
	if v.opts.Webhooks == nil {
		return nil, errNoSender
	}
	return v.editWebhook(ctx, replay.Request{Operation: opUpdateWebhook, Object: id}, func(w *Webhook) error {
		if u.URL != nil && *u.URL != w.URL || u.Disabled != nil && *u.Disabled != w.Disabled {
			w.since = now()
		}
		set(&w.URL, u.URL)
		set(&w.Description, u.Description)
		set(&w.LegacyHMAC, u.LegacyHMAC)

		if u.Events != nil {
			w.Events = u.Events
		}
		if u.Disabled != nil && *u.Disabled != w.Disabled {
			w.Disabled, w.DisabledReason = *u.Disabled, ""
			if w.Disabled {
				w.DisabledReason = DisabledRequested
			}
		}
		return v.checkWebhook(w)
	})
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// DeleteWebhook removes a webhook. Its deliveries are erased by [Vault.Run], also
// without [Options.Webhooks]. The error is ErrNotFound for an id that the account does
// not have, or ErrLedgerBehind.
func (v *Vault) DeleteWebhook(ctx context.Context, id uuid.UUID) (err error) {
	defer v.doing(ctx, "delete webhook", &err, id)
	row := v.rows.Unmask(kindWebhook, id)
	left, err := v.eraser.Remains(v.rows, kindQueue, outbox.Beside(row))
	if err != nil {
		return err
	}

	large := false
	err = v.changeAccount(ctx, opDeleteWebhook, id, func(*Account) (func(store.Tx) error, error) {
		if _, err := v.rows.GetRow(ctx, kindWebhook, row); err != nil {
			return nil, err
		}
		return func(tx store.Tx) (err error) {
			if _, err := v.rows.Find(tx, kindWebhook, row); err != nil {
				return err
			}
			tx.Delete(kindWebhook, row)
			large, err = v.ledger.DeleteFamily(tx, kindQueue, outbox.Beside(row), left, nil)
			return err
		}, nil
	})
	if err != nil {
		return err
	}
	if large {
		v.jobs.Due(left)
	}
	return inLedger(ctx, v, "delete webhook")
}

// WebhookSecretOptions are the options of RotateWebhookSecret.
type WebhookSecretOptions struct {
	// RevokePrevious ends all former secrets in the same transaction, as
	// RevokePreviousWebhookSecrets does, instead of after [WebhookSecretOverlap].
	RevokePrevious bool

	IdempotencyKey string // see the package comment
}

// RotateWebhookSecret makes a new signing secret for a webhook and returns the webhook with
// it; it is shown only here. opts may be nil. The former secret signs beside it for
// [WebhookSecretOverlap], and so do earlier ones until their time ends: the receiver can
// verify each delivery with any of them.
//
// Errors: ErrNotFound; ErrTooManySecrets while [receive.MaxSecrets] sign, unless they are
// revoked; ErrIdempotencyKeyReused.
func (v *Vault) RotateWebhookSecret(ctx context.Context, id uuid.UUID, opts *WebhookSecretOptions) (_ *Webhook, err error) {
	defer v.doing(ctx, "rotate webhook secret", &err, id)
	if opts == nil {
		opts = new(WebhookSecretOptions)
	}
	call := replay.Request{Operation: opRotateWebhook, Object: id, Key: opts.IdempotencyKey, Body: func() []byte {
		return tlv.AppendBool(nil, 1, opts.RevokePrevious)
	}}

	return v.editWebhook(ctx, call, func(w *Webhook) error {
		at := now()
		if w.secrets = w.signing(at); opts.RevokePrevious {
			w.secrets = []signingSecret{{value: newSigningSecret()}}
			w.Secret = w.secrets[0].value
			return nil
		}
		if len(w.secrets) >= receive.MaxSecrets {
			return ErrTooManySecrets
		}
		w.secrets[len(w.secrets)-1].until = at.Add(WebhookSecretOverlap)
		w.Secret = newSigningSecret()
		w.secrets = append(w.secrets, signingSecret{value: w.Secret})
		return nil
	})
}

// RevokePreviousWebhookSecrets ends all secrets of a webhook except the newest, without
// another rotation. A webhook with one secret stays as it is.
//
// From the commit on, no process begins a delivery that a revoked secret signs. An attempt
// that is under way ends within 15 seconds. Events that wait are not signed yet.
//
// The error is ErrNotFound for an id that the account does not have.
func (v *Vault) RevokePreviousWebhookSecrets(ctx context.Context, id uuid.UUID) (err error) {
	defer v.doing(ctx, "revoke previous webhook secrets", &err, id)
	_, err = v.editWebhook(ctx, replay.Request{Operation: opRevokeWebhookSecret, Object: id}, func(w *Webhook) error {
		w.secrets = w.secrets[len(w.secrets)-1:]
		return nil
	})
	return err
}

// signing returns the secrets that sign at a time, oldest first.
func (w *Webhook) signing(at time.Time) []signingSecret {
	return slices.DeleteFunc(slices.Clone(w.secrets), func(s signingSecret) bool {
		return !s.until.IsZero() && !s.until.After(at)
	})
}

// A WebhookTest is the outcome of a test event.
type WebhookTest struct {
	StatusCode int // of HTTP; 0 if there was no answer
	Duration   time.Duration
}

// TestWebhook sends an event webhook.test, which has no token, to a webhook, even a
// disabled one. It is sent once and not in the log.
//
// Errors: ErrNotFound; ErrNotEnabled; ErrTestInProgress while another test of the webhook
// is under way in this process.
func (v *Vault) TestWebhook(ctx context.Context, id uuid.UUID) (_ *WebhookTest, err error) {
	defer v.doing(ctx, "test webhook", &err, id)
	if v.opts.Webhooks == nil {
		return nil, errNoSender
	}
	w, err := v.Webhook(ctx, id)
	if err != nil {
		return nil, err
	}
	if _, busy := v.testing.LoadOrStore(w.row, nil); busy {
		return nil, ErrTestInProgress
	}
	defer v.testing.Delete(w.row)

	begin := time.Now()
	out := v.send(ctx, w, &Delivery{ID: uuid.New(), CreatedAt: now()})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return &WebhookTest{out.Code, time.Since(begin)}, nil
}

func newSigningSecret() receive.WebhookSecret {
	text := keytext.Secret("whsec_", base64.StdEncoding)
	defer clear(text)
	return receive.NewWebhookSecret(text)
}

var allEvents = eventTypes[1:]

// checkWebhook returns a FieldError for each rule that w breaks, and puts its events
// in order.
func (v *Vault) checkWebhook(w *Webhook) error {
	refused := v.opts.Webhooks.Check(&Target{URL: w.URL, Account: v.rows.ID})
	errs := []error{broken("URL", rule.URL(w.URL, refused))}
	if w.Description != "" {
		errs = append(errs, checkText("Description", []byte(w.Description)))
	}
	if slices.ContainsFunc(w.Events, func(e receive.EventType) bool { return typeNumber(e) == 0 }) {
		errs = append(errs, &FieldError{"Events", invalid.Enum, "must be event types"})
	}

	named := w.Events
	w.Events = slices.DeleteFunc(slices.Clone(allEvents), func(e receive.EventType) bool {
		return len(named) > 0 && !slices.Contains(named, e)
	})
	return errors.Join(errs...)
}

// editWebhook lets fn change the webhook that is the object of a call, stores it and returns
// it.
func (v *Vault) editWebhook(ctx context.Context, call replay.Request, fn func(*Webhook) error) (*Webhook, error) {
	op, id := call.Operation, call.Object
	again := replay.Reopen(ctx, v.rows, kindWebhook, v.listedWebhook, func(w *Webhook) { w.Replayed = true })
	return once(ctx, v, call, again, func(c *replay.Call) (w *Webhook, err error) {
		var paused *store.Record // if a pause of it ends
		err = tryAccount(ctx, v, op, id, func(*Account) (func(store.Tx) error, error) {
			r, err := v.rows.Get(ctx, kindWebhook, id)
			if err != nil {
				return nil, err
			}
			if w, err = v.openWebhook(ctx, r); err != nil {
				return nil, err
			}
			was := *w
			if err := fn(w); err != nil {
				return nil, err
			}

			wake := func(store.Tx) error { return nil }
			if !w.Disabled && (was.Disabled || w.URL != was.URL) {
				if paused, wake, err = v.outbox.EndPause(ctx, r.ID); err != nil {
					return nil, err
				}
			}

			r.Version++
			if err := c.Seal(r.ID[:], uuid.Nil); err != nil {
				return nil, err
			}
			return func(tx store.Tx) error { tx.Put(r); return cmp.Or(wake(tx), c.Put(tx)) }, v.sealWebhook(r, w)
		})
		if err == nil {
			v.jobs.Due(paused)
		}
		return w, err
	})
}

func (v *Vault) webhookRow(ctx context.Context, row uuid.UUID) (*Webhook, error) {
	r, err := v.rows.GetRow(ctx, kindWebhook, row)
	if err != nil {
		return nil, err
	}
	return v.openWebhook(ctx, r)
}

const (
	webhookURL = iota + 1
	webhookDescription
	webhookEvents
	webhookLegacy
	webhookDisabled
	webhookReason
	webhookSince
	_ // formerly of the secret part
	_
	webhookSecretSet
)

// Tags of the secret part.
const (
	webhookSecretUntil = iota + 1
	webhookSecret      // ends one secret
	webhookSet
)

// sealWebhook sets both parts of the record of a webhook: its secrets are in the part that
// lists do not read. The secret part binds no version, so both name their set of secrets: a
// former one cannot be put back.
func (v *Vault) sealWebhook(r *store.Record, w *Webhook) error {
	w.set = uuid.New()
	if err := v.rows.SealShown(r, tlv.Encode(w.fields)); err != nil {
		return err
	}

	buf := plaintexts.Get().(*[]byte)
	defer wipe(buf)
	var f tlv.Fields
	f.To((*buf)[:0])
	f.Array(webhookSet, w.set[:])
	tlv.Items(&f, webhookSecretUntil, webhookSecret, &w.secrets, (*signingSecret).fields)
	*buf = tlv.Pad(f.Bytes(), 64, 0)
	return v.rows.SealSecret(r, *buf)
}

func (w *Webhook) fields(f *tlv.Fields) {
	tlv.Text(f, webhookURL, &w.URL)
	tlv.Text(f, webhookDescription, &w.Description)
	tlv.Items(f, webhookEvents, webhookEvents, &w.Events, func(e *receive.EventType, f *tlv.Fields) {
		n := typeNumber(*e)
		tlv.Uint(f, webhookEvents, &n)
		*e = eventType(uint64(n))
	})
	f.Bool(webhookLegacy, &w.LegacyHMAC)
	f.Bool(webhookDisabled, &w.Disabled)
	tlv.Text(f, webhookReason, &w.DisabledReason)
	f.Time(webhookSince, &w.since)
	f.Array(webhookSecretSet, w.set[:])
}

func (s *signingSecret) fields(f *tlv.Fields) {
	f.Time(webhookSecretUntil, &s.until)
	if value := f.Value(webhookSecret, hiding.Of(s.value)); f.Reading() {
		s.value = receive.NewWebhookSecret(value)
	}
}

// openWebhook returns a webhook with its secrets.
func (v *Vault) openWebhook(ctx context.Context, rec *store.Record) (*Webhook, error) {
	w, err := v.listedWebhook(ctx, rec)
	if err != nil {
		return nil, err
	}
	plain, err := v.rows.OpenSecret(ctx, rec)
	if err != nil {
		return nil, err
	}
	defer clear(plain)

	var ofSet uuid.UUID
	var f tlv.Fields
	f.From(plain)
	f.Array(webhookSet, ofSet[:])
	tlv.Items(&f, webhookSecretUntil, webhookSecret, &w.secrets, (*signingSecret).fields)
	if ofSet != w.set || len(w.secrets) == 0 {
		return nil, v.rows.Named(rec, fmt.Errorf("%w: the stored secrets do not belong to the webhook", ErrDamaged))
	}
	return w, v.rows.Named(rec, ledger.FieldsError(&f))
}

// listedWebhook returns a webhook without its secrets, which are in no list.
func (v *Vault) listedWebhook(ctx context.Context, rec *store.Record) (*Webhook, error) {
	w := &Webhook{ID: v.rows.Mask(kindWebhook, rec.ID), CreatedAt: rowkey.Time(rec.ID), row: rec.ID, version: rec.Version}
	return w, v.rows.ReadFields(ctx, rec, w.fields)
}
