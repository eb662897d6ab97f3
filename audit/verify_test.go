package audit_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/google/uuid"
)

var (
	key     = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	public  = key.Public().(ed25519.PublicKey)
	vaultID = uuid.MustParse("11111111-1111-4111-8111-111111111111")
	account = uuid.MustParse("22222222-2222-4222-8222-222222222222")
	lanes   = []uuid.UUID{uuid.MustParse("33333333-3333-4333-8333-333333333333"), uuid.MustParse("44444444-4444-4444-8444-444444444444")}
	start   = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
)

// A log is the audit log of an account, in parts that tests change.
type log struct {
	checkpoints []*audit.Checkpoint
	records     [][]*audit.Record // by checkpoint
	open        []*audit.Record
	from        int // checkpoints that an export leaves out
	first       uint64
	keys        []audit.Signer     // nil: key alone
	by          ed25519.PrivateKey // of the end; nil: key
}

func record(lane, sequence int) *audit.Record {
	r := &audit.Record{
		Lane: lanes[lane], Sequence: uint64(sequence), At: start.Add(time.Duration(sequence) * time.Millisecond), AccountID: account,
		Actor:     audit.Actor{KeyID: uuid.MustParse("55555555-5555-4555-8555-555555555555"), Address: "192.0.2.1", RequestID: "request"},
		Operation: "token.import", ObjectID: uuid.MustParse("66666666-6666-4666-8666-666666666666"), Outcome: audit.Success, Calls: 1,
	}
	sum := sha256.Sum256(r.AppendContent([]byte("secret")))
	copy(r.MAC[:], sum[:])
	return r
}

// newLog returns a log of six checkpoints of two lanes, with void sequence numbers.
func newLog() *log { return newLogOf(6, 5) }

func newLogOf(checkpoints, sequences int) *log {
	l := &log{first: 1}
	var previous [sha256.Size]byte
	next := []int{1, 1}
	for n := range checkpoints {
		lane := n % 2
		c := &audit.Checkpoint{VaultID: vaultID, AccountID: account, Number: uint64(n + 1), At: start.Add(time.Duration(n) * time.Second),
			Previous: previous, Lane: lanes[lane], First: uint64(next[lane])}
		var digests [][audit.DigestSize]byte
		var records []*audit.Record
		for i := range sequences {
			r := record(lane, next[lane])
			next[lane]++
			if i == 2 {
				digests = append(digests, [audit.DigestSize]byte{})
				continue
			}
			digests = append(digests, r.Digest())
			records = append(records, r)
		}
		c.SetDigests(digests)
		c.Sign(key)
		previous = c.Hash()
		l.checkpoints, l.records = append(l.checkpoints, c), append(l.records, records)
	}
	l.open = []*audit.Record{record(0, next[0]), record(1, next[1])}
	return l
}

func (l *log) export(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	keys, by := l.keys, l.by
	if keys == nil {
		keys, by = []audit.Signer{{PublicKey: [32]byte(public), First: 1}}, key
	}
	x := audit.NewWriter(&b, vaultID, account, l.first+uint64(l.from), l.from == 0, keys, by)
	for i, c := range l.checkpoints[l.from:] {
		must(t, x.Checkpoint(c))
		for _, r := range l.records[l.from+i] {
			must(t, x.Record(r))
		}
	}
	for _, r := range l.open {
		must(t, x.Open(r))
	}
	must(t, x.Close())
	return b.Bytes()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func verify(export []byte, kept ...*audit.Checkpoint) (*audit.Report, error) {
	return audit.Verify(bytes.NewReader(export), &audit.VerifyOptions{PublicKeys: []ed25519.PublicKey{public}, Kept: kept})
}

func TestVerify(t *testing.T) {
	l := newLog()
	var each, open []*audit.Record
	report, err := audit.Verify(bytes.NewReader(l.export(t)), &audit.VerifyOptions{
		PublicKeys: []ed25519.PublicKey{public}, Kept: l.checkpoints,
		Each: func(r *audit.Record) error { each = append(each, r); return nil },
		Open: func(r *audit.Record) error { open = append(open, r); return nil },
	})
	must(t, err)
	if report.VaultID != vaultID || report.AccountID != account || !slices.Equal(report.Keys, []audit.Signer{{PublicKey: [32]byte(public), First: 1}}) ||
		report.First != 1 || report.Last.Number != 6 || report.Records != 24 || report.Void != 6 || report.Open != 2 {
		t.Errorf("report is %+v", report)
	}
	if want := slices.Concat(l.records...); len(each) != len(want) || *each[7] != *want[7] {
		t.Errorf("records are not those of the log: %d", len(each))
	}
	if len(open) != 2 || *open[1] != *l.open[1] {
		t.Errorf("%d records without a checkpoint", len(open))
	}

	l.from = 2
	if report, err := verify(l.export(t)); err != nil || report.First != 3 {
		t.Errorf("part of a log: %+v, %v", report, err)
	}
	stop := errors.New("stop")
	if _, err := audit.Verify(bytes.NewReader(l.export(t)), &audit.VerifyOptions{Each: func(*audit.Record) error { return stop }}); err != stop {
		t.Errorf("Verify returned %v", err)
	}
}

// TestFaultsNamed changes a log where it is stored: the vault exports and signs what is left.
func TestFaultsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(*log)
		fault      audit.Fault
		checkpoint uint64
		lane       int
		sequence   uint64
	}{
		"a record is edited":        {func(l *log) { l.records[2][1].Operation = "token.read" }, audit.Edited, 3, 0, 7},
		"a time is edited":          {func(l *log) { l.records[2][3].At = start }, audit.Edited, 3, 0, 10},
		"a MAC is edited":           {func(l *log) { l.records[0][0].MAC[3] ^= 1 }, audit.Edited, 1, 0, 1},
		"a sequence is edited":      {func(l *log) { l.records[1][0].Sequence = 3 }, audit.Edited, 2, 1, 1},
		"a record is removed":       {func(l *log) { l.records[3] = slices.Delete(l.records[3], 2, 3) }, audit.Removed, 4, 1, 9},
		"a first record is removed": {func(l *log) { l.records[1] = l.records[1][1:] }, audit.Removed, 2, 1, 1},
		"a last record is removed":  {func(l *log) { l.records[5] = l.records[5][:3] }, audit.Removed, 6, 1, 15},
		"all records are removed":   {func(l *log) { l.records[4] = nil }, audit.Removed, 5, 0, 11},
		"records are swapped":       {func(l *log) { r := l.records[0]; r[1], r[3] = r[3], r[1] }, audit.Swapped, 1, 0, 2},
		"records of two checkpoints are swapped": {func(l *log) { l.records[0][1], l.records[2][0] = l.records[2][0], l.records[0][1] },
			audit.Edited, 1, 0, 2},
		"a record is put twice":         {func(l *log) { l.records[0] = slices.Insert(l.records[0], 1, l.records[0][0]) }, audit.Added, 1, 0, 0},
		"a record is made up":           {func(l *log) { l.records[3] = append(l.records[3], record(1, 8)) }, audit.Added, 4, 0, 0},
		"a checkpoint is removed":       {func(l *log) { l.drop(2) }, audit.Removed, 3, 0, 0},
		"the first one is removed":      {func(l *log) { l.drop(0) }, audit.Removed, 1, 0, 0},
		"checkpoints are swapped":       {func(l *log) { c := l.checkpoints; c[1], c[2] = c[2], c[1] }, audit.Removed, 2, 0, 0},
		"a lane is removed":             {func(l *log) { l.drop(4); l.drop(2); l.drop(0) }, audit.Removed, 1, 0, 0},
		"a lane is removed from 2 on":   {func(l *log) { l.drop(5); l.drop(3) }, audit.Removed, 4, 0, 0},
		"a checkpoint is replayed":      {func(l *log) { l.checkpoints[4] = l.checkpoints[2] }, audit.Replayed, 3, 0, 0},
		"a checkpoint of another chain": {func(l *log) { l.checkpoints[2].At = start; l.checkpoints[2].Sign(key) }, audit.Replayed, 4, 0, 0},
		"a checkpoint is edited":        {func(l *log) { l.checkpoints[3].First++ }, audit.Edited, 4, 0, 0},
		"a digest is edited":            {func(l *log) { l.checkpoints[3].SetDigests(nil) }, audit.Edited, 4, 0, 0},
		"a checkpoint of another key":   {func(l *log) { l.checkpoints[0].Sign(ed25519.NewKeyFromSeed(make([]byte, 32))) }, audit.Edited, 1, 0, 0},
		"a checkpoint of another vault": {func(l *log) { l.checkpoints[0].VaultID[3]++; l.checkpoints[0].Sign(key) }, audit.Foreign, 1, 0, 0},
		"an open record of another":     {func(l *log) { l.open[0].AccountID[1]++ }, audit.Foreign, 6, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			c.change(l)
			report, err := verify(l.export(t), newLog().checkpoints[:1]...)
			var found *audit.VerifyError
			if !errors.As(err, &found) {
				t.Fatalf("Verify returned %v", err)
			}
			lane := uuid.Nil
			if c.sequence > 0 {
				lane = lanes[c.lane]
			}
			if found.Fault != c.fault || found.Checkpoint != c.checkpoint || found.Sequence != c.sequence || found.Lane != lane {
				t.Errorf("found %v, and expected %v of record %d, checkpoint %d", err, c.fault, c.sequence, c.checkpoint)
			}
			if found.Line < 2 || report == nil {
				t.Errorf("line %d, report %v", found.Line, report)
			}
		})
	}
}

// drop takes a checkpoint with its records out of a log.
func (l *log) drop(i int) {
	l.checkpoints, l.records = slices.Delete(l.checkpoints, i, i+1), slices.Delete(l.records, i, i+1)
}

// TestKept cuts a log off where it is stored, which only a kept checkpoint shows.
func TestKept(t *testing.T) {
	kept := newLog().checkpoints
	l := newLog()
	l.checkpoints, l.records, l.open = l.checkpoints[:4], l.records[:4], nil
	if _, err := verify(l.export(t), kept[:4]...); err != nil {
		t.Error(err)
	}
	wants(t, l.export(t), audit.CutOff, 5, kept[5])
	wants(t, l.export(t), audit.CutOff, 5, kept[4])

	// The vault goes on after the cut, in another chain.
	other := newLog()
	other.checkpoints[5].At = start
	other.checkpoints[5].Sign(key)
	wants(t, other.export(t), audit.Replayed, 6, kept[5])

	stranger := *kept[2]
	stranger.Sign(ed25519.NewKeyFromSeed(make([]byte, 32)))
	wants(t, newLog().export(t), audit.Foreign, 0, &stranger)
	stranger.VaultID[0]++
	wants(t, newLog().export(t), audit.Foreign, 0, &stranger)
	elsewhere := *kept[2]
	elsewhere.AccountID[0]++
	elsewhere.Number = 99
	elsewhere.Sign(key)
	if _, err := verify(newLog().export(t), &elsewhere); err != nil {
		t.Errorf("a checkpoint of another account: %v", err)
	}
}

func wants(t *testing.T, export []byte, f audit.Fault, checkpoint uint64, kept ...*audit.Checkpoint) {
	t.Helper()
	var found *audit.VerifyError
	if _, err := verify(export, kept...); !errors.As(err, &found) || found.Fault != f || found.Checkpoint != checkpoint {
		t.Errorf("Verify returned %v, and not that checkpoint %d is %v", err, checkpoint, f)
	}
}

// TestRotated exports a log whose key was rotated before checkpoint 4. The former key signs
// no later checkpoint.
func TestRotated(t *testing.T) {
	present := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{8}, ed25519.SeedSize))
	both := []ed25519.PublicKey{public, present.Public().(ed25519.PublicKey)}
	rotated := func(change func(*log)) (*audit.Report, error) {
		t.Helper()
		l := newLog()
		l.keys, l.by = []audit.Signer{{PublicKey: [32]byte(both[0]), First: 1}, {PublicKey: [32]byte(both[1]), First: 4}}, present
		for _, c := range l.checkpoints[3:] {
			c.Sign(present)
		}
		change(l)
		return audit.Verify(bytes.NewReader(l.export(t)), &audit.VerifyOptions{PublicKeys: both, Kept: l.checkpoints[2:4]})
	}

	report, err := rotated(func(*log) {})
	must(t, err)
	if len(report.Keys) != 2 || report.Keys[1].First != 4 || report.Last.Number != 6 {
		t.Errorf("report is %+v", report)
	}
	_, err = rotated(func(l *log) {
		l.keys, l.by = append(l.keys, audit.Signer{PublicKey: [32]byte(both[1]), First: 7}), present
	})
	must(t, err)

	for name, c := range map[string]struct {
		change     func(*log)
		fault      audit.Fault
		checkpoint uint64
	}{
		"a later checkpoint of the former key":   {func(l *log) { l.checkpoints[4].Sign(key) }, audit.Edited, 5},
		"an earlier checkpoint of the later key": {func(l *log) { l.checkpoints[1].Sign(present) }, audit.Edited, 2},
		"an end of the former key":               {func(l *log) { l.by = key }, audit.Foreign, 6},
		"a key of another vault":                 {func(l *log) { l.keys[1].PublicKey[4] ^= 1 }, audit.Edited, 4},
		"keys out of order":                      {func(l *log) { l.keys[0].First = 9 }, audit.Malformed, 0},
		"no keys":                                {func(l *log) { l.keys = []audit.Signer{} }, audit.Malformed, 0},
	} {
		var found *audit.VerifyError
		if _, err := rotated(c.change); !errors.As(err, &found) || found.Fault != c.fault || found.Checkpoint != c.checkpoint {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// again signs the checkpoints from index i on, each behind the one before.
func (l *log) again(i int) {
	for ; i < len(l.checkpoints); i++ {
		if c := l.checkpoints[i]; c.Break == nil {
			c.Previous = l.checkpoints[i-1].Hash()
		}
		l.checkpoints[i].Sign(key)
	}
}

// TestBreak exports a log whose vault has lost the end of its chain, and goes on with checkpoint
// 4 behind the last one that it could read.
func TestBreak(t *testing.T) {
	broken := func(last uint64, change func(*log)) *log {
		l := newLog()
		c := l.checkpoints[3]
		c.Break, c.Previous = &audit.Break{Last: last, Records: 7}, [32]byte{}
		if last > 0 {
			c.Previous = l.checkpoints[last-1].Hash()
		}
		l.again(3)
		change(l)
		return l
	}
	without := func(first, last int) func(*log) {
		return func(l *log) {
			for range last - first + 1 {
				l.drop(first - 1)
			}
		}
	}
	for name, c := range map[string]struct {
		log     *log
		missing uint64
	}{
		"nothing missing":           {broken(3, func(*log) {}), 0},
		"two missing":               {broken(1, without(2, 3)), 2},
		"all missing":               {broken(0, without(1, 3)), 3},
		"damaged only at that time": {broken(1, func(*log) {}), 0},
	} {
		export := c.log.export(t)
		report, err := verify(export, newLog().checkpoints[0])
		var found *audit.VerifyError
		if !errors.As(err, &found) || found.Fault != audit.Broken || found.Checkpoint != 4 || report.Last.Number != 6 {
			t.Errorf("%s: %v, report %+v", name, err, report)
		}
		if g := report.Gaps; len(g) != 1 || g[0].Checkpoint != 4 || g[0].Missing != c.missing || g[0].Records != 7 || !g[0].At.Equal(c.log.checkpoints[3-c.missing].At) {
			t.Errorf("%s: gaps %+v", name, g)
		}
		report, err = audit.Verify(bytes.NewReader(export), &audit.VerifyOptions{PublicKeys: []ed25519.PublicKey{public}, Known: report.Gaps})
		if err != nil || len(report.Gaps) != 1 {
			t.Errorf("%s: a known break: %v", name, err)
		}
		other := report.Gaps[0]
		other.Hash[0] ^= 1
		if _, err = audit.Verify(bytes.NewReader(export), &audit.VerifyOptions{PublicKeys: []ed25519.PublicKey{public}, Known: []audit.Gap{other}}); !errors.As(err, &found) {
			t.Errorf("%s: another break of this number: %v", name, err)
		}
	}

	// Checkpoints that are removed behind a break that was known without that.
	first, err := verify(broken(1, func(*log) {}).export(t))
	_, later := audit.Verify(bytes.NewReader(broken(1, without(2, 3)).export(t)), &audit.VerifyOptions{PublicKeys: []ed25519.PublicKey{public}, Known: first.Gaps})
	var more *audit.VerifyError
	if err == nil || !errors.As(later, &more) || more.Fault != audit.Broken {
		t.Errorf("two more are missing before a known break: %v", later)
	}

	for name, c := range map[string]struct {
		log        *log
		fault      audit.Fault
		checkpoint uint64
	}{
		"one more is missing":        {broken(2, without(2, 3)), audit.Removed, 2},
		"the one before was edited":  {broken(3, func(l *log) { l.checkpoints[3].Previous[0] ^= 1; l.again(3) }), audit.Replayed, 4},
		"the break was taken out":    {broken(1, func(l *log) { l.checkpoints[3].Break = nil; l.drop(1); l.drop(1) }), audit.Edited, 4},
		"the break was made smaller": {broken(1, func(l *log) { l.checkpoints[3].Break.Records = 0 }), audit.Edited, 4},
		"a break behind itself":      {broken(3, func(l *log) { l.checkpoints[3].Break.Last = 4; l.again(3) }), audit.Malformed, 4},
		"a fault after it":           {broken(3, func(l *log) { l.records[4] = nil }), audit.Removed, 5},
	} {
		var found *audit.VerifyError
		if _, err := verify(c.log.export(t)); !errors.As(err, &found) || found.Fault != c.fault || found.Checkpoint != c.checkpoint {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyBreaks: breaks that are known leave room in the report for those that are not.
func TestManyBreaks(t *testing.T) {
	const breaks = 1200
	l := newLogOf(breaks, 1)
	for i, c := range l.checkpoints {
		if i > 0 {
			c.Previous = l.checkpoints[i-1].Hash()
		}
		c.Break = &audit.Break{Last: uint64(i), Records: 1}
		c.Sign(key)
	}
	export := l.export(t)
	var known []audit.Gap
	for range 2 {
		report, err := audit.Verify(bytes.NewReader(export), &audit.VerifyOptions{PublicKeys: []ed25519.PublicKey{public}, Known: known})
		if err == nil || len(report.Gaps) != 1000 {
			t.Fatalf("%d gaps, %v", len(report.Gaps), err)
		}
		for _, g := range report.Gaps {
			if !slices.Contains(known, g) {
				known = append(known, g)
			}
		}
		if len(known) == breaks {
			break
		}
	}
	report, err := audit.Verify(bytes.NewReader(export), &audit.VerifyOptions{PublicKeys: []ed25519.PublicKey{public}, Known: known})
	if err != nil || len(known) != breaks || len(report.Gaps) != 1000 {
		t.Errorf("%d known gaps: %v", len(known), err)
	}
}

// TestTwice exports a log with a second checkpoint of the same records.
func TestTwice(t *testing.T) {
	l := newLog()
	c := l.checkpoints[5]
	c.Lane, c.First, c.Digests = l.checkpoints[0].Lane, l.checkpoints[0].First, l.checkpoints[0].Digests
	l.again(5)
	var found *audit.VerifyError
	if _, err := verify(l.export(t)); !errors.As(err, &found) || found.Fault != audit.Replayed || found.Checkpoint != 6 {
		t.Error(err)
	}
}

// TestErasure exports a log whose oldest checkpoints were erased because of their age.
func TestErasure(t *testing.T) {
	erased := func(l *log, n uint64) {
		for _, c := range l.checkpoints[4:] {
			c.Erased = n
		}
		l.checkpoints[4].Sign(key)
		l.checkpoints[5].Previous = l.checkpoints[4].Hash()
		l.checkpoints[5].Sign(key)
	}
	for n, f := range map[uint64]audit.Fault{1: audit.Removed, 2: 0, 3: 0} {
		l := newLog()
		erased(l, n)
		l.drop(0)
		l.drop(0)
		l.first = 3
		switch {
		case f == 0:
			if _, err := verify(l.export(t)); err != nil {
				t.Errorf("%d erased: %v", n, err)
			}
		default:
			wants(t, l.export(t), f, n+1)
		}
	}
}

// TestEveryByte changes each byte of an export, and by turns removes it, adds one before it, and
// cuts the export off there.
func TestEveryByte(t *testing.T) {
	export := newLogOf(2, 4).export(t)
	step := 1
	if testing.Short() {
		step = 17
	}
	for i := 0; i < len(export); i += step {
		edited := bytes.Clone(export)
		edited[i] ^= 1 << (i % 8)
		other := [][]byte{
			slices.Delete(bytes.Clone(export), i, i+1),
			slices.Insert(bytes.Clone(export), i, ' '),
			export[:i],
		}[i%3]
		for what, changed := range map[string][]byte{"edited": edited, "removed, added or cut off": other} {
			var found *audit.VerifyError
			if _, err := verify(changed); !errors.As(err, &found) {
				t.Fatalf("byte %d %s: %v", i, what, err)
			}
		}
	}
	if _, err := verify(append(export, '\n')); err == nil {
		t.Error("a line after the end")
	}
}

// TestEveryLine removes each line of an export, swaps it with the next one and repeats it.
func TestEveryLine(t *testing.T) {
	lines := slices.Collect(strings.Lines(string(newLog().export(t))))
	for i := range lines {
		for what, changed := range map[string][]string{
			"removed":  slices.Delete(slices.Clone(lines), i, i+1),
			"repeated": slices.Insert(slices.Clone(lines), i, lines[i]),
			"swapped":  slices.Concat(lines[:i], lines[min(i+1, len(lines)-1):min(i+2, len(lines))], lines[i:i+1], lines[min(i+2, len(lines)):]),
		} {
			if what == "swapped" && i == len(lines)-1 {
				continue
			}
			var found *audit.VerifyError
			if _, err := verify([]byte(strings.Join(changed, ""))); !errors.As(err, &found) {
				t.Errorf("line %d %s: %v", i+1, what, err)
			}
		}
	}
}

func TestJSON(t *testing.T) {
	l := newLog()
	var c audit.Checkpoint
	var r audit.Record
	for _, pair := range [][2]any{{l.checkpoints[1], &c}, {l.records[1][0], &r}} {
		text, err := json.Marshal(pair[0])
		must(t, err)
		must(t, json.Unmarshal(text, pair[1]))
	}
	if c != *l.checkpoints[1] || r != *l.records[1][0] || !c.SignedBy(public) || c.SignedBy(public[:5]) {
		t.Error("JSON is not read as it was written")
	}
	if err := json.Unmarshal([]byte(`{"number":-1}`), &c); err == nil {
		t.Error("a malformed checkpoint is read")
	}
	var o audit.Outcome
	must(t, o.UnmarshalText([]byte("refused")))
	if o != audit.Refused || o.UnmarshalText([]byte("x")) == nil {
		t.Error("outcomes are not read")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (failing) Read([]byte) (int, error)  { return 0, io.ErrClosedPipe }

func TestErrorsOfOthers(t *testing.T) {
	x := audit.NewWriter(failing{}, vaultID, account, 0, true, nil, key)
	if err := x.Close(); err != io.ErrClosedPipe {
		t.Errorf("Close returned %v", err)
	}
	if _, err := audit.Verify(failing{}, nil); err != io.ErrClosedPipe {
		t.Errorf("Verify returned %v", err)
	}
	if _, err := audit.Verify(strings.NewReader(strings.Repeat("x", 1<<20)), nil); err == nil {
		t.Error("a line of a MiB is read")
	}
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte(`{"export":{"format":1}}` + "\n"))
	f.Fuzz(func(t *testing.T, export []byte) {
		if _, err := verify(export); err == nil {
			t.Error("an export that no vault has signed is verified")
		}
	})
}

// TestKeptBefore: an export that begins in the midst of a log follows the kept checkpoint before it.
func TestKeptBefore(t *testing.T) {
	next := func(before *audit.Checkpoint) *audit.Checkpoint {
		c := &audit.Checkpoint{VaultID: vaultID, AccountID: account, Number: 1, At: start}
		if before != nil {
			c.Number, c.Previous = before.Number+1, before.Hash()
		}
		c.Sign(key)
		return c
	}
	second := next(next(nil))
	twin := next(next(nil))
	twin.At = start.Add(time.Second)
	twin.Sign(key)
	third := next(second)
	var out bytes.Buffer
	x := audit.NewWriter(&out, vaultID, account, 3, false, []audit.Signer{{PublicKey: [ed25519.PublicKeySize]byte(public), First: 1}}, key)
	if err := errors.Join(x.Checkpoint(third), x.Close()); err != nil {
		t.Fatal(err)
	}

	for kept, want := range map[*audit.Checkpoint]audit.Fault{second: 0, third: 0, twin: audit.Replayed, next(third): audit.CutOff} {
		_, err := audit.Verify(bytes.NewReader(out.Bytes()), &audit.VerifyOptions{PublicKeys: []ed25519.PublicKey{public}, Kept: []*audit.Checkpoint{kept}})
		fault, _ := errors.AsType[*audit.VerifyError](err)
		if (want == 0) != (err == nil) || want != 0 && (fault == nil || fault.Fault != want) {
			t.Errorf("kept checkpoint %d: %v, want %v", kept.Number, err, want)
		}
	}
}
