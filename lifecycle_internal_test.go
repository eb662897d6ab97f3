package cardvault

import (
	"context"
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/network"
)

// progresses holds the states in which an answer can find a network token, with the data
// that the state machine keeps.
var progresses = func() map[string]progress {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	net := networkToken{network: "net", attempt: 1}
	with := func(status network.Status, change func(*progress)) progress {
		p := progress{status: status, networkToken: net}
		if change != nil {
			change(&p)
		}
		return p
	}
	token := func(p *progress) { p.id, p.since, p.stateAt = "nt", at, at }
	unsure := func(p *progress) { p.unsure = true }
	return map[string]progress{
		"fresh":      with(network.Pending, nil),
		"repeated":   with(network.Pending, unsure),
		"last try":   with(network.Pending, func(p *progress) { p.tries = uint64(len(retries)) }),
		"accepted":   with(network.Pending, func(p *progress) { token(p); p.tries = 1 }),
		"polled":     with(network.Pending, func(p *progress) { token(p); p.tries = 9; p.since = at.Add(-pollsEnd) }),
		"active":     with(network.Active, token),
		"inactive":   with(network.Inactive, func(p *progress) { token(p); p.suspendedBy = network.OwnersOf(network.OwnerIssuer) }),
		"paused":     with(network.Inactive, func(p *progress) { token(p); p.suspendedBy = network.OwnersOf(network.OwnerCardholder) }),
		"deleted":    with(network.Deleted, token),
		"failed":     with(network.Failed, nil),
		"lost":       with(network.Failed, func(p *progress) { unsure(p); p.since = at }),
		"lost long":  with(network.Failed, func(p *progress) { unsure(p); p.since, p.tries = at.Add(-pollsEnd), uint64(len(polls)) }),
		"lost, down": with(network.Failed, func(p *progress) { unsure(p); p.since = at.Add(-pollsEnd) }),
		"given up":   with(network.Failed, func(p *progress) { token(p); p.since = at }),
		"none":       with(network.NotAvailable, nil),
		"none, lost": with(network.NotAvailable, unsure),
	}
}()

// answers holds all possible answers: to Provision with the prefix "p ", to Lookup with "l
// ", and events without a call.
var answers = func() map[string]networkAnswer {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := map[string]networkAnswer{
		"requested":           {kind: answerRequested, network: "net"},
		"requested elsewhere": {kind: answerRequested, network: "other"},
		"forbidden":           {kind: answerForbidden, provisions: true, reason: newReason(network.SourceConfiguration, "card_expired", "", at)},
		"elsewhere":           {kind: answerElsewhere, network: "other"},
		"not elsewhere":       {kind: answerElsewhere, network: "net"},
		"suspended":           {kind: answerSuspended},
		"resumed":             {kind: answerResumed},
		"l outdated":          {kind: answerOutdated},
		"p releasing":         {kind: answerReleasing, provisions: true, err: errReleasing},
		"l releasing":         {kind: answerReleasing, err: errReleasing},
	}
	both := func(name string, got *network.Token, err error) {
		p := networkAnswer{provisions: true, asked: at}
		p.receive(got, err)
		l := networkAnswer{asked: at}
		l.receive(got, err)
		all["p "+name], all["l "+name] = p, l
	}
	both("pending", &network.Token{ID: "nt", State: network.Pending}, nil)
	both("active", &network.Token{ID: "nt", State: network.Active}, nil)
	both("inactive", &network.Token{ID: "nt", State: network.Inactive, SuspendedBy: network.OwnersOf(network.OwnerScheme)}, nil)
	both("deleted", &network.Token{ID: "nt", State: network.Deleted}, nil)
	both("dead", &network.Token{ID: "nt", State: network.Deleted, Invalidated: true}, nil)
	both("older", &network.Token{ID: "nt", State: network.Active, StateAt: at.Add(-time.Hour)}, nil)
	both("final", nil, &network.Error{Source: network.SourceScheme, Code: "declined", SchemeCode: "51"})
	both("passing", nil, &network.Error{Source: network.SourceScheme, Code: "issuer_unavailable"})
	both("later", nil, &network.Error{Source: network.SourceScheme, Code: "issuer_unavailable", RetryAfter: time.Hour})
	both("much later", nil, &network.Error{Source: network.SourceScheme, Code: "issuer_unavailable", RetryAfter: 1000 * time.Hour})
	both("set-up", nil, &network.Error{Source: network.SourceConfiguration, Code: "scheme_not_enabled"})
	both("timeout", nil, context.DeadlineExceeded)
	both("panic", nil, errPanic)
	both("garbage", nil, errGarbage)
	both("unknown", nil, network.ErrUnknown)
	for _, name := range []string{"p active", "p final", "p set-up", "p timeout", "forbidden", "elsewhere"} {
		a := all[name]
		a.repeats = true
		all[name+" again"] = a
	}
	for _, name := range []string{"passing", "set-up"} {
		a := all["p "+name]
		a.unmade = true
		all["p "+name+", unmade"] = a
	}
	return all
}()

// TestProgress: the result of each answer. A field that a row does not change stays the
// same.
func TestProgress(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	live := func(d time.Duration) time.Duration { return d }

	// These are the steps of rows.
	type step = func(*progress)
	state := func(s network.Status) step { return func(p *progress) { p.status, p.reason = s, nil } }
	because := func(s network.Status, source network.Source, code network.Code, schemeCode string) step {
		return func(p *progress) { p.status, p.reason = s, newReason(source, code, schemeCode, at) }
	}
	wait := func(kind pauseKind, d ...time.Duration) step {
		return func(p *progress) {
			p.pause = pause{kind: kind}
			if len(d) > 0 {
				p.wait = d[0]
			}
			if len(d) > 1 {
				p.least = d[1]
			}
		}
	}
	tries := func(n uint64) step { return func(p *progress) { p.tries = n } }
	problem := func(code network.Code) step { return func(p *progress) { p.problem.Code = code } }
	unsure := func(p *progress) { p.unsure = true }
	known := func(p *progress) { p.unsure = false }
	another := func(p *progress) { known(p); p.attempt++ }
	attached := func(p *progress) {
		p.id, p.unsure, p.tries, p.since, p.stateAt = "nt", false, 0, at, at
	}
	taken := func(p *progress) { attached(p); p.cardAt = at } // under a key that was not used before
	by := func(o ...network.Owner) step { return func(p *progress) { p.suspendedBy = network.OwnersOf(o...) } }
	began := func(p *progress) { p.since = at }
	provider := func(name string) step { return func(p *progress) { p.network = name } }
	dead := func(p *progress) { p.invalidatedAt = at }

	now, never, daily := wait(pauseExact), wait(pauseEver), wait(pauseMixed, reconcileAfter)
	hourly, poll := wait(pausePaced, time.Hour), wait(pauseExact, polls[0])
	active := state(network.Active)
	declined := because(network.Failed, network.SourceScheme, "declined", "51")
	gaveUp := func(code network.Code) step { return because(network.Failed, network.SourceScheme, code, "") }
	setUp := because(network.NotAvailable, network.SourceConfiguration, "scheme_not_enabled", "")
	byScheme := because(network.Inactive, network.SourceScheme, "suspended_by_scheme", "")
	gone := because(network.Deleted, network.SourceScheme, "deleted_by_scheme", "")

	rows := []struct {
		from, on string
		to       []step
	}{
		// Granted.
		{"fresh", "p active", []step{taken, active, daily}},
		{"fresh", "p pending", []step{taken, poll, tries(1)}},
		{"fresh", "p inactive", []step{taken, byScheme, by(network.OwnerScheme), daily}},
		{"fresh", "p deleted", []step{taken, gone, never}},
		{"fresh", "p dead", []step{taken, dead, because(network.Deleted, network.SourceScheme, "account_closed", ""), never}},
		{"repeated", "p active", []step{attached, active, poll}}, // perhaps the state at the time of the first call
		{"last try", "p active", []step{taken, active, daily}},
		{"failed", "p active", []step{taken, active, daily}}, // given up during the call
		{"lost", "p active", []step{attached, active, poll}},

		// Refused for good.
		{"fresh", "p final", []step{known, declined, never}},
		{"repeated", "p final", []step{known, declined, never}},

		// Refused for now. It is unknown whether a network token was made, unless a look-up
		// has settled that.
		{"fresh", "p passing", []step{unsure, problem("issuer_unavailable"), tries(1), wait(pausePaced, retries[0])}},
		{"fresh", "p later", []step{unsure, problem("issuer_unavailable"), tries(1), wait(pausePaced, time.Hour, time.Hour)}},
		{"fresh", "p much later", []step{unsure, problem("issuer_unavailable"), tries(1), wait(pausePaced, maxRetryAfter, maxRetryAfter)}},
		{"fresh", "p passing, unmade", []step{another, problem("issuer_unavailable"), tries(1), wait(pausePaced, retries[0])}},
		{"repeated", "p passing, unmade", []step{another, problem("issuer_unavailable"), tries(1), wait(pausePaced, retries[0])}},
		{"last try", "p passing", []step{unsure, problem("issuer_unavailable"), tries(1), began, gaveUp("issuer_unavailable"), hourly}},
		{"last try", "p passing, unmade", []step{another, problem("issuer_unavailable"), tries(0), began, gaveUp("issuer_unavailable"), never}},

		// Refused by the configuration, which says nothing about an earlier call.
		{"fresh", "p set-up", []step{known, setUp, never}},
		{"repeated", "p set-up", []step{setUp, never}},
		{"repeated", "p set-up, unmade", []step{known, setUp, never}},

		// No answer, or an impossible one.
		{"fresh", "p timeout", []step{unsure, problem("timeout"), tries(1), wait(pausePaced, retries[0])}},
		{"fresh", "p panic", []step{unsure, problem("scheme_unavailable"), tries(1), wait(pausePaced, retries[0])}},
		{"fresh", "p garbage", []step{unsure, problem("scheme_unavailable"), tries(1), wait(pausePaced, retries[0])}},
		{"fresh", "p unknown", []step{unsure, problem("scheme_unavailable"), tries(1), wait(pausePaced, retries[0])}},
		{"repeated", "p timeout", []step{problem("timeout"), tries(1), wait(pausePaced, retries[0])}},
		{"last try", "p timeout", []step{unsure, problem("timeout"), tries(1), began, gaveUp("timeout"), hourly}},

		// The process that held the shard may have made the call already.
		{"fresh", "p active again", []step{attached, active, poll}},
		{"fresh", "p final again", []step{known, declined, never}},
		{"fresh", "p set-up again", []step{unsure, setUp, never}},
		{"fresh", "p timeout again", []step{unsure, problem("timeout"), tries(1), wait(pausePaced, retries[0])}},
		{"fresh", "forbidden again", []step{unsure, because(network.NotAvailable, network.SourceConfiguration, "card_expired", ""), never}},

		// The network token is about to be deleted for another token.
		{"fresh", "p releasing", []step{another, problem("scheme_unavailable"), tries(1), wait(pausePaced, retries[0])}},
		{"lost", "l releasing", []step{tries(1), hourly}},

		// The network is not asked.
		{"fresh", "forbidden", []step{known, because(network.NotAvailable, network.SourceConfiguration, "card_expired", ""), never}},
		{"repeated", "forbidden", []step{because(network.NotAvailable, network.SourceConfiguration, "card_expired", ""), never}},
		{"fresh", "elsewhere", []step{provider("other"), now}},
		{"fresh", "elsewhere again", []step{unsure, daily}}, // the call may have been made
		{"repeated", "elsewhere", []step{daily}},
		{"active", "elsewhere", []step{daily}},
		{"active", "not elsewhere", nil},

		// A caller requests a network token.
		{"failed", "requested", []step{state(network.Pending), another, now}},
		{"none", "requested", []step{state(network.Pending), another, now}},
		{"lost", "requested", []step{state(network.Pending), now}}, // with the same key, since the first may have been made
		{"none, lost", "requested", []step{state(network.Pending), now}},
		{"lost", "requested elsewhere", []step{state(network.Pending), another, provider("other"), now}},
		{"given up", "requested", []step{state(network.Pending), another, now, func(p *progress) { p.id = "" }}},

		// A look-up under the key of a lost call.
		{"lost", "l active", []step{attached, active, daily}},
		{"lost", "l pending", []step{attached, tries(1), hourly}}, // still in progress
		{"lost", "l unknown", []step{known, never}},
		{"lost", "l final", []step{known, never}},
		{"lost", "l passing", []step{tries(1), hourly}},
		{"lost", "l timeout", []step{tries(1), hourly}},
		{"lost long", "l timeout", []step{never}},
		{"lost, down", "l timeout", []step{tries(1), hourly}},
		{"repeated", "l active", []step{attached, active, daily}},
		{"repeated", "l unknown", nil}, // requested meanwhile: the next call settles it
		{"repeated", "l final", nil},
		{"repeated", "l passing", nil},
		{"repeated", "l timeout", nil},

		// Polling.
		{"accepted", "l pending", []step{wait(pausePaced, polls[1]), tries(2)}},
		{"accepted", "l active", []step{active, tries(0), daily}},
		{"accepted", "l final", []step{declined, never}},
		{"accepted", "l set-up", []step{setUp, never}},
		{"accepted", "l passing", []step{problem("issuer_unavailable"), wait(pausePaced, polls[1]), tries(2)}},
		{"accepted", "l garbage", []step{wait(pausePaced, polls[1]), tries(2)}},
		{"accepted", "l unknown", []step{wait(pausePaced, polls[1]), tries(2)}},
		{"polled", "l pending", []step{gaveUp("timeout"), never}},
		{"polled", "l passing", []step{problem("issuer_unavailable"), gaveUp("issuer_unavailable"), never}},
		{"polled", "l active", []step{active, tries(0), daily}},
		{"given up", "l active", []step{active, daily}},
		{"given up", "l pending", []step{tries(1), hourly}},

		// Reconciling.
		{"active", "l active", []step{daily}},
		{"active", "l inactive", []step{byScheme, by(network.OwnerScheme), daily}},
		{"active", "l deleted", []step{gone, never}},
		{"active", "l older", []step{daily}},
		{"active", "l timeout", []step{wait(pauseMixed, time.Hour)}},
		{"active", "l final", []step{wait(pauseMixed, time.Hour)}},
		{"active", "l unknown", []step{wait(pauseMixed, time.Hour)}},
		{"active", "l outdated", []step{now}},
		{"inactive", "l active", []step{active, by(), daily}},
		{"inactive", "l inactive", []step{byScheme, by(network.OwnerScheme), daily}},

		// Suspended and resumed on behalf of the cardholder.
		{"active", "suspended", []step{because(network.Inactive, network.SourceScheme, "suspended_by_cardholder", ""), by(network.OwnerCardholder), now}},
		{"inactive", "suspended", []step{because(network.Inactive, network.SourceScheme, "suspended_by_issuer", ""), by(network.OwnerIssuer, network.OwnerCardholder), now}},
		{"paused", "suspended", []step{now}},
		{"paused", "resumed", []step{active, by(), now}},
		{"inactive", "resumed", []step{now}},
		{"active", "resumed", []step{now}},
	}
	for _, row := range rows {
		from, known := progresses[row.from]
		a, ok := answers[row.on]
		if !known || !ok {
			t.Fatalf("no state %q or answer %q", row.from, row.on)
		}
		want := from
		for _, change := range row.to {
			change(&want)
		}
		if got := from.after(a, at, live); !reflect.DeepEqual(got, want) {
			t.Errorf("%s after %s:\n got %+v %+v\nwant %+v %+v", row.from, row.on, got, got.reason, want, want.reason)
		}
	}
}

// TestProgressRules: rules that hold for every answer in every state.
func TestProgressRules(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	kinds := map[answerKind]bool{}
	for from, p := range progresses {
		if p.status == network.Pending {
			p.pause = pause{kind: pauseExact} // due now
		}
		for on, a := range answers {
			kinds[a.kind] = true
			if a.kind == answerRequested && p.status != network.Failed && p.status != network.NotAvailable {
				continue // refused to the caller, or without effect
			}
			if a.provisions && (p.id != "" || p.status != network.Pending && a.kind != answerToken) {
				continue // belongs to another provisioning
			}
			got := p.after(a, at, func(d time.Duration) time.Duration { return d })
			bad := func(rule string) { t.Errorf("%s after %s: %s: %+v", from, on, rule, got) }

			if got.status == network.Pending && (got.pause == pause{} || got.pause.kind == pauseEver) {
				bad("pending, and never due")
			}
			if got.unsure && got.id != "" {
				bad("unsure of a network token that is known")
			}
			if got.attempt != p.attempt && p.unsure && !a.unmade && a.kind != answerReleasing && got.network == p.network {
				bad("another key while the outcome under the former is unknown")
			}
			if p.id != "" && got.id != p.id && a.kind != answerRequested {
				bad("its network token is lost")
			}
			if p.status == network.Deleted && got.status != p.status {
				bad("alive after its end")
			}
			if a.kind == answerToken && (got.id == "") {
				bad("a network token that is not kept")
			}
			if got.tries > uint64(len(retries)) && got.id == "" {
				bad("tries without end")
			}
		}
	}
	if len(kinds) != answerKinds {
		t.Errorf("%d kinds of answers were tested, want %d", len(kinds), answerKinds)
	}
}

// TestFormerlyCalled: a former version stored that a call may be in progress. The outcome is
// unknown then, unless the record has the network token.
func TestFormerlyCalled(t *testing.T) {
	plain := tlv.AppendBool((&networkToken{attempt: 1}).encode(nil), networkCalled, true)
	if n, err := decodeNetworkToken(plain); err != nil || !n.unsure {
		t.Errorf("%+v, %v", n, err)
	}
	plain = tlv.AppendBool((&networkToken{attempt: 1, id: "nt"}).encode(nil), networkCalled, true)
	if n, err := decodeNetworkToken(plain); err != nil || n.unsure {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestPauses: pauses in a sandbox are shorter, except the first polling pause. Chance never
// shortens a pause that the network asks for.
func TestPauses(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	was := at.Add(time.Minute)
	rows := []struct {
		mode      Mode
		pause     pause
		from, end time.Time
	}{
		{Live, pause{}, was, was},
		{Live, pause{kind: pauseEver}, time.Time{}, time.Time{}},
		{Live, pause{kind: pauseExact}, at, at},
		{Sandbox, pause{kind: pauseExact, wait: time.Second}, at.Add(time.Second), at.Add(time.Second)},
		{Sandbox, pause{kind: pauseMixed, wait: time.Hour}, at.Add(48 * time.Minute), at.Add(72 * time.Minute)},
		{Live, pause{kind: pausePaced, wait: time.Hour}, at.Add(48 * time.Minute), at.Add(72 * time.Minute)},
		{Live, pause{kind: pausePaced, wait: time.Hour, least: time.Hour}, at.Add(time.Hour), at.Add(72 * time.Minute)},
		{Sandbox, pause{kind: pausePaced, wait: 100 * time.Second}, at.Add(800 * time.Millisecond), at.Add(1200 * time.Millisecond)},
		{Sandbox, pause{kind: pausePaced, wait: time.Hour}, at.Add(4 * time.Second), at.Add(6 * time.Second)},
		{Live, pause{kind: pauseMixed, wait: time.Hour, sooner: true}, was, was},
		{Live, pause{kind: pauseExact, sooner: true}, at, at},
		{Live, pause{kind: pauseEver, sooner: true}, time.Time{}, time.Time{}},
	}
	for _, row := range rows {
		c := &core{opts: Options{Mode: row.mode}}
		for range 100 {
			if got := c.dueAfter(row.pause, at, was); got.Before(row.from) || got.After(row.end) {
				t.Errorf("%v, %+v: due %v, want %v to %v", row.mode, row.pause, got, row.from, row.end)
			}
		}
	}
}

// TestProgressOfNotices: the result of each notice.
func TestProgressOfNotices(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Hour)
	reason := func(source network.Source, code network.Code) *Reason { return newReason(source, code, "", at) }
	declined := &network.Error{Source: network.SourceScheme, Code: "declined"}
	rows := []struct {
		from   string
		notice network.Notice
		status network.Status
		reason *Reason
		pause  pause
	}{
		{"accepted", network.Notice{Kind: network.NoticeActivated}, network.Active, nil, pause{kind: pauseMixed, wait: reconcileAfter, sooner: true}},
		{"given up", network.Notice{Kind: network.NoticeActivated}, network.Active, nil, pause{kind: pauseMixed, wait: reconcileAfter, sooner: true}},
		{"lost", network.Notice{Kind: network.NoticeActivated}, network.Failed, nil, pause{kind: pauseExact}},
		{"active", network.Notice{Kind: network.NoticeActivated}, network.Active, nil, pause{}},
		{"accepted", network.Notice{Kind: network.NoticeRefused, Failure: declined}, network.Failed, reason(network.SourceScheme, "declined"), pause{kind: pauseEver}},
		{"active", network.Notice{Kind: network.NoticeRefused, Failure: declined}, network.Active, nil, pause{}},
		{"active", network.Notice{Kind: network.NoticeSuspended, By: network.OwnerIssuer}, network.Inactive, reason(network.SourceScheme, "suspended_by_issuer"), pause{kind: pauseMixed, wait: reconcileAfter, sooner: true}},
		{"accepted", network.Notice{Kind: network.NoticeSuspended, By: network.OwnerIssuer}, network.Pending, nil, pause{kind: pauseExact}},
		{"inactive", network.Notice{Kind: network.NoticeResumed, By: network.OwnerIssuer}, network.Active, nil, pause{kind: pauseMixed, wait: reconcileAfter, sooner: true}},
		{"inactive", network.Notice{Kind: network.NoticeResumed, By: network.OwnerScheme}, network.Inactive, nil, pause{}},
		{"active", network.Notice{Kind: network.NoticeDeleted, By: network.OwnerScheme}, network.Deleted, reason(network.SourceScheme, "deleted_by_scheme"), pause{kind: pauseEver, sooner: true}},
		{"deleted", network.Notice{Kind: network.NoticeSuspended, By: network.OwnerIssuer}, network.Deleted, nil, pause{}},
		{"none", network.Notice{Kind: network.NoticeInvalidated}, network.Deleted, reason(network.SourceScheme, "account_closed"), pause{kind: pauseEver, sooner: true}},
		{"active", network.Notice{Kind: network.NoticeTokenRenewed}, network.Active, nil, pause{}},
		{"active", network.Notice{Kind: network.NoticeArtChanged, Art: "new"}, network.Active, nil, pause{kind: pauseExact}},
		{"failed", network.Notice{Kind: network.NoticeArtChanged, Art: "new"}, network.Failed, nil, pause{}},
	}
	for _, row := range rows {
		got := progresses[row.from].noticed(&row.notice, at, at, func(d time.Duration) time.Duration { return d })
		if got.status != row.status || !reflect.DeepEqual(got.reason, row.reason) || got.pause != row.pause {
			t.Errorf("%s after notice %d: %v, %+v, %+v; want %v, %+v, %+v",
				row.from, row.notice.Kind, got.status, got.reason, got.pause, row.status, row.reason, row.pause)
		}

		// The same notice revives nothing if it is older than the known state.
		from := progresses[row.from]
		old := from.noticed(&row.notice, at.Add(-2*time.Hour), at, func(d time.Duration) time.Duration { return d })
		if from.id != "" && row.notice.Kind <= network.NoticeResumed && old.status != from.status {
			t.Errorf("%s after old notice %d: %v", row.from, row.notice.Kind, old.status)
		}
	}
}

// TestStoredOwners: stored network tokens stay readable, also if a former version wrote
// them. They number owners from 0.
func TestStoredOwners(t *testing.T) {
	const stored = "02016e0301740401010a0105150101160102170103"
	n := &networkToken{network: "n", id: "t", attempt: 1, suspendedBy: network.OwnersOf(network.OwnerIssuer, network.OwnerCardholder)}
	for i, by := range []network.Owner{network.OwnerIssuer, network.OwnerScheme, network.OwnerCardholder} {
		n.ownerAt[by-network.OwnerIssuer] = time.UnixMicro(int64(i + 1)).UTC()
	}
	if got := hex.EncodeToString(n.encode(nil)); got != stored {
		t.Errorf("%s, want %s", got, stored)
	}

	plain, err := hex.DecodeString(stored)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeNetworkToken(plain); err != nil || !reflect.DeepEqual(got, n) {
		t.Errorf("%+v, %v", got, err)
	}
	p := progress{status: network.Active, networkToken: *n}
	p = p.noticed(&network.Notice{Kind: network.NoticeSuspended, By: network.OwnerCardholder}, time.UnixMicro(9).UTC(), time.UnixMicro(9).UTC(), func(d time.Duration) time.Duration { return d })
	if p.ownerAt != [ownerCount]time.Time{n.ownerAt[0], n.ownerAt[1], time.UnixMicro(9).UTC()} {
		t.Errorf("the times of the last notices by owner are %v", p.ownerAt)
	}
}
