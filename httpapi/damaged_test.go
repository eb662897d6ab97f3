package httpapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A listPage holds the parts of a list's answer that concern its items.
type listPage struct {
	Data       []struct{ ID string }
	Damaged    []string
	Pagination struct {
		Total int `json:"total_items"`
	}
}

func (r *rig) list(t *testing.T, path string) (p listPage) {
	t.Helper()
	a := r.do(t, "GET", path, "")
	a.want(t, 200)
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// Every list returns its readable items and names the damaged ones. The log reports those
// as a failure and names them too.
func TestDamagedInLists(t *testing.T) {
	r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, nil)
	victim, _ := r.newKey(t, r.vault, 0, cardvault.ScopeTokensRead)
	hook := r.newWebhook(t, r.vault)
	r.importCard(t)
	token := r.importCard(t)

	delivery := r.list(t, "/webhooks/"+hook+"/deliveries").Data[0].ID
	for _, list := range []struct {
		path string
		kind store.Kind // in package cardvault
		id   string     // of the newest
		verb string
		left int
	}{
		{"/webhooks/" + hook + "/deliveries", 22, delivery, "list deliveries: event ", 1},
		{"/webhooks", 20, hook, "list webhooks: webhook ", 0},
		{"/tokens", 5, token, "list tokens: token ", 1},
		{"/api-keys", 4, victim.ID.String(), "list API keys: API key ", 1},
	} {
		err := r.store.Update(t.Context(), func(tx store.Tx) error {
			all, err := tx.Scan(list.kind, uuid.Nil, 100)
			if err != nil || len(all) == 0 {
				return fmt.Errorf("%d records of kind %d: %w", len(all), list.kind, err)
			}
			newest := all[len(all)-1]
			newest.Version++
			newest.Shown[len(newest.Shown)-1] ^= 1
			tx.Put(newest)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}

		r.log.take()
		page := r.list(t, list.path)
		if len(page.Data) != list.left || !slices.Equal(page.Damaged, []string{list.id}) || page.Pagination.Total != list.left+1 {
			t.Errorf("%s: %+v", list.path, page)
		}
		if line := r.log.take(); !strings.Contains(line, "level=ERROR") || !strings.Contains(line, list.verb) || !strings.Contains(line, list.id) {
			t.Errorf("%s is logged as %q", list.path, line)
		}
	}
}

// The log of a page with any number of damaged items is one short line, which names the
// first of them. The answer names all.
func TestManyDamagedInAList(t *testing.T) {
	r := newRig(t, nil, nil)
	const n = 50
	for range n {
		r.importCard(t)
	}
	err := r.store.Update(t.Context(), func(tx store.Tx) error {
		all, err := tx.Scan(5, uuid.Nil, n)
		for _, token := range all {
			token.Version++
			token.Shown[len(token.Shown)-1] ^= 1
			tx.Put(token)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	r.log.take()
	page := r.list(t, "/tokens?limit=50")
	if len(page.Damaged) != n {
		t.Fatalf("%d items are named", len(page.Damaged))
	}
	line := r.log.take()
	if len(line) > 1500 || !strings.Contains(line, page.Damaged[4]) || strings.Contains(line, page.Damaged[5]) || !strings.Contains(line, "and 45 more") {
		t.Errorf("%d bytes are logged: %q", len(line), line)
	}
}
