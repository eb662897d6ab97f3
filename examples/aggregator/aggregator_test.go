package aggregator_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/examples/aggregator"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/networktest"
)

// A service answers like the token service. It refuses the card that ends in 0002.
type service struct {
	mu      sync.Mutex
	tokens  map[string]string // states, by id
	keys    map[string]string // ids, by idempotency key
	answers map[string]string // cryptograms, by idempotency key
}

func TestNetwork(t *testing.T) {
	s := &service{tokens: map[string]string{}, keys: map[string]string{}, answers: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /network-tokens", s.provision)
	mux.HandleFunc("GET /network-tokens/{id}", s.lookup)
	mux.HandleFunc("GET /network-tokens/by-key/{key}", s.lookup)
	mux.HandleFunc("DELETE /network-tokens/{id}", s.remove)
	mux.HandleFunc("DELETE /network-tokens/by-key/{key}", s.remove)
	mux.HandleFunc("POST /network-tokens/{id}/cryptograms", s.cryptogram)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	expiry := card.Expiry{Month: 12, Year: 2090}
	networktest.Run(t, networktest.Harness{
		Open: func(t testing.TB) network.Provider {
			c, err := aggregator.New(server.URL, "secret", card.VISA)
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		Scheme:  card.VISA,
		Card:    cardvault.Card{PAN: card.NewPAN([]byte("4111111111111111")), Expiry: expiry},
		Refused: cardvault.Card{PAN: card.NewPAN([]byte("4000000000000002")), Expiry: expiry},
	})
}

// TestNoState: an answer without a state is refused, whatever else it contains.
func TestNoState(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"id":"nt-1","last_four":"1111"}`)
	}))
	t.Cleanup(server.Close)
	c, err := aggregator.New(server.URL, "secret", card.VISA)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Lookup(t.Context(), network.Ref{ID: "nt-1"}); err == nil {
		t.Errorf("Lookup = %+v", got)
	}
}

func (s *service) provision(w http.ResponseWriter, r *http.Request) {
	var q struct{ Number string }
	if json.NewDecoder(r.Body).Decode(&q) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.Number == "4000000000000002" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"code":"declined"}`)
		return
	}

	key := r.Header.Get("Idempotency-Key")
	if s.keys[key] == "" {
		s.keys[key] = fmt.Sprint("nt-", len(s.keys))
		s.tokens[s.keys[key]] = "active"
	}
	s.answer(w, s.keys[key])
}

// find returns the id of the network token in a path.
func (s *service) find(r *http.Request) string {
	return cmp.Or(r.PathValue("id"), s.keys[r.PathValue("key")])
}

func (s *service) answer(w http.ResponseWriter, id string) {
	if s.tokens[id] == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	fmt.Fprintf(w, `{"id":%q,"state":%q,"last_four":"1111"}`, id, s.tokens[id])
}

func (s *service) lookup(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer(w, s.find(r))
}

func (s *service) remove(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := s.find(r); s.tokens[id] != "" {
		s.tokens[id] = "deleted"
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *service) cryptogram(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.find(r)
	if s.tokens[id] != "active" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"code":"deleted_by_issuer"}`)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if s.answers[key] == "" {
		s.answers[key] = fmt.Sprintf("AgAAAAAABk4DWZ4C28yUQAA%05d", len(s.answers))
	}
	fmt.Fprintf(w, `{"token":%q,"number":"4895370012003478","expiry_month":12,"expiry_year":2091,"cryptogram":%q,"eci":"07"}`, id, s.answers[key])
}
