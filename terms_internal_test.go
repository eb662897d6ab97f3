package cardvault

import (
	"bytes"
	"testing"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// TestTermEndsByItself: after 2^31 seals under a key the next one begins a new term, and the audit
// log says so.
func TestTermEndsByItself(t *testing.T) {
	s := memstore.New()
	keys, err := KeyBytes(bytes.Repeat([]byte{1}, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	open := func() *Vault {
		v, err := New(t.Context(), s, keys, &Options{Mode: Sandbox, Audit: &AuditOptions{}})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}

	v := open()
	first := v.ledger.Box.Keys()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	raised := 0
	err = s.Update(t.Context(), func(tx store.Tx) error {
		all, err := tx.Scan(ledger.KindMeta, uuid.Nil, 100)
		for _, r := range all {
			count, mac := uint64(0), []byte(nil)
			for f := tlv.Read(r.Shown); f.Next(); {
				switch f.Tag {
				case 1:
					count = f.Uint()
				case 2:
					mac = f.Value
				}
			}
			if !bytes.Equal(mac, first.CountMAC(1, count)) {
				continue
			}
			raised++
			const most = 1 << 31
			r.Shown = tlv.Append(tlv.AppendUint(nil, 1, most), 2, first.CountMAC(1, most))
			r.Version++
			tx.Put(r)
		}
		return err
	})
	if err != nil || raised != 1 {
		t.Fatalf("%d counts were raised, %v", raised, err)
	}

	v = open()
	if _, err := v.CreateMerchant(t.Context(), "shop", nil); err != nil {
		t.Fatal(err)
	}
	if term := v.ledger.Term(); term != 2 {
		t.Errorf("the term is %d", term)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open()
	defer v.Close()
	rotated := 0
	for r, err := range v.In(uuid.Nil).AllAuditRecords(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Operation == "keys.rotate" {
			rotated++
		}
	}
	if rotated != 1 {
		t.Errorf("%d records of a rotation", rotated)
	}
}
