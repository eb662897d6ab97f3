package backup

import (
	"bytes"
	"testing"
	"time"

	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

var wholeRecord = &store.Record{
	Kind: 255, ID: uuid.Max, Account: uuid.UUID{1}, Parent: uuid.UUID{2}, Class: 255, Due: time.UnixMicro(0).UTC(), Version: 1 << 63,
	Lookup: [][]byte{{}, bytes.Repeat([]byte{7}, store.MaxLookup)}, Shown: []byte("shown"), Secret: bytes.Repeat([]byte{9}, store.MaxRecord),
}

// A record of any size fits into a chunk, and is read as it was written.
func TestRow(t *testing.T) {
	before := wholeRecord.Clone()
	before.Due = time.UnixMicro(-1).UTC()
	for _, r := range []*store.Record{{Kind: 1, ID: uuid.UUID{1}}, wholeRecord, before} {
		b := appendRow(nil, r)
		if len(b)+chunkBytes+spanHead > maxChunk {
			t.Errorf("a record takes %d bytes", len(b))
		}
		is, err := parseRow(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(appendRow(nil, is), b) || is.Kind != r.Kind || is.ID != r.ID || is.Account != r.Account || is.Parent != r.Parent ||
			is.Class != r.Class || !is.Due.Equal(r.Due) || is.Version != r.Version || len(is.Lookup) != len(r.Lookup) {
			t.Errorf("read %+v", is)
		}
	}
}

// A thaw counts if it is later than the freeze in the log and by the clocks; in doubt the account stays
// frozen.
func TestStand(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	for _, c := range []struct {
		log  []standing
		want standing
	}{
		{[]standing{{true, at(1)}, {false, at(2)}}, standing{false, at(2)}},
		{[]standing{{false, at(1)}, {true, at(2)}}, standing{true, at(2)}},
		{[]standing{{true, at(2)}, {false, at(1)}}, standing{true, at(2)}},
		{[]standing{{true, at(2)}, {false, at(2)}}, standing{true, at(2)}},
		{[]standing{{false, at(2)}, {true, at(1)}}, standing{true, at(1)}},
		{[]standing{{false, at(2)}, {true, at(1)}, {false, at(3)}}, standing{false, at(3)}},
		{[]standing{{true, at(3)}, {true, at(1)}, {false, at(2)}}, standing{true, at(3)}},
	} {
		f := Deletions{standing: map[uuid.UUID]standing{}, stood: map[laneID]uint64{}}
		for range 2 { // exports may overlap
			for n, s := range c.log {
				f.stand(&audit.Record{AccountID: uuid.Max, Sequence: uint64(n + 1), At: s.at}, s.freeze)
			}
		}
		if is := f.standing[uuid.Max]; is != c.want {
			t.Errorf("%v: %v, want %v", c.log, is, c.want)
		}
	}
}

// Nothing that is read makes a program panic or take memory without bound. Chunks are
// authenticated before they are read, except the head.
func FuzzChunk(f *testing.F) {
	s := span{wholeRecord.Kind, uuid.UUID{1}, uuid.Max}
	m := &maker{counts: map[store.Kind]*count{}}
	m.addSpan(s, []*store.Record{wholeRecord})
	m.addChanges([]*store.Record{wholeRecord, {Kind: 3, ID: uuid.UUID{1}}})
	for _, body := range m.bodies {
		f.Add(body)
	}
	h := &head{format: format, backup: uuid.New(), vault: uuid.New(), began: time.Now(), keyring: appendRow(nil, &store.Record{Kind: 1, ID: uuid.UUID{15: 1}, Version: 1, Shown: []byte("keyring")})}
	f.Add(bodyOf(sortHead, h.fields))
	e := &end{time.Now(), 7, make([]byte, 32), 1, []count{{1, 2, 3}, {4, 5, 0}}, []term{1, 2}}
	f.Add(bodyOf(sortEnd, e.fields))

	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) == 0 {
			return
		}
		s, rows, err := parseSpan(body[1:])
		for _, r := range rows {
			if err == nil && (!s.has(r.ID) || r.Kind != s.kind) {
				t.Errorf("record %v in a span %v", r.ID, s)
			}
		}
		_, _ = parseRows(body[1:])
		for _, fields := range []func(*tlv.Fields){new(head).fields, new(end).fields} {
			var f tlv.Fields
			f.From(body[1:])
			fields(&f)
		}
		r := &reader{r: bytes.NewReader(body), what: "the backup"}
		_, _, _ = r.unverified()
	})
}

func TestEnd(t *testing.T) {
	e := &end{time.UnixMicro(5).UTC(), 7, make([]byte, 32), 1, []count{{1, 2, 3}, {4, 5, 0}, {6, 0, 7}}, []term{1, 2}}
	is := new(end)
	var f tlv.Fields
	f.From(bodyOf(sortEnd, e.fields)[1:])
	is.fields(&f)
	if f.Err() != nil || len(is.counts) != 3 || is.counts[2] != e.counts[2] || is.counts[1] != e.counts[1] || len(is.terms) != 2 || is.terms[1] != 2 {
		t.Errorf("%+v, %v", is, f.Err())
	}
}

func TestBefore(t *testing.T) {
	for id, want := range map[uuid.UUID]uuid.UUID{
		{15: 1}:       {},
		{14: 1}:       {15: 255},
		{0: 1, 15: 7}: {0: 1, 15: 6},
	} {
		if is := before(id); is != want {
			t.Errorf("before %v: %v, want %v", id, is, want)
		}
	}
}

// A change is among the changes from its announcement until it is made and read.
func TestChanges(t *testing.T) {
	c := newChanges(4)
	key := func(n byte) store.Key { return store.Key{Kind: 1, ID: uuid.UUID{n}} }
	with := func(limit, want int, others ...store.Key) {
		t.Helper()
		keys, all := c.with(others, limit)
		if all != (want >= 0) || len(keys) != max(want, 0) {
			t.Errorf("%d changes, %v, want %d", len(keys), all, want)
		}
	}
	with(0, 0)
	made := c.changing([]store.Key{key(1), key(2)})
	with(2, 2)
	with(1, -1)
	with(2, 2, key(1))
	with(3, 3, key(3))
	if n := len(c.take(9)); n != 0 {
		t.Errorf("%d changes under way were taken", n)
	}
	made()
	if n := len(c.take(1)); n != 1 {
		t.Errorf("%d changes were taken", n)
	}
	with(9, 1)
	if n := len(c.take(9)); n != 1 {
		t.Errorf("%d changes were left", n)
	}
	with(9, 0)

	c.changing([]store.Key{key(2), key(3), key(4), key(5), key(6), {Kind: 2, ID: uuid.UUID{9}}})()
	with(99, -1)
	spans := c.spans()
	if len(spans) != 1 || !spans[0].has(key(2).ID) || !spans[0].has(key(5).ID) || spans[0].has(uuid.UUID{1}) {
		t.Errorf("spans %v", spans)
	}
	with(9, 2)
}
