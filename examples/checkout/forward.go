package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// forward pays an order with the card itself: the vault sends it to the shop's payment
// provider, in a request that the shop has written with placeholders. The shop never has it.
func (s *shop) forward(ctx context.Context, o *order) (*answer, error) {
	var sent struct {
		Status int    `json:"status_code"`
		Body   string // what the provider has answered, without the card
	}
	// If the answer is lost, a second call under the same key returns it. The provider sees
	// one request.
	err := s.call(ctx, "POST", "/forward", fmt.Sprintf("%s-%d", o.id, o.attempt), map[string]any{
		"token_id": o.token,
		"consume":  true, // the code has done its work once the provider has charged the card
		"request": map[string]any{
			"method":  "POST",
			"url":     s.psp,
			"headers": map[string]string{"content-type": "application/json", "idempotency-key": o.id},
			"body": fmt.Sprintf(`{"reference":%q,"amount":%d,"currency":%q,"number":"{{ account_number }}",`+
				`"month":"{{ expiry_month }}","year":"{{ expiry_year }}","code":"{{ security_code }}"}`, o.id, price, currency),
		},
	}, &sent)

	var refused *refusal
	switch {
	case errors.As(err, &refused) && refused.Classifier == "SECURITY_CODE_NOT_AVAILABLE":
		return declined(reason{Message: "That took too long."}, "new_session"), nil
	case errors.As(err, &refused) && (refused.Classifier == "CARD_DATA_STALE" || refused.Classifier == "TOKEN_INVALIDATED"):
		o.old = o.token
		return declined(reason{Message: "Your bank has replaced this card."}, "new_session"), nil
	case err != nil:
		return nil, err
	case sent.Status == http.StatusPaymentRequired:
		o.attempt++
		return declined(reason{Message: "Your bank declined the payment."}, "new_session"), nil
	case sent.Status != http.StatusOK:
		return nil, fmt.Errorf("the payment provider answers %d", sent.Status)
	}

	var paid struct{ ID, Card string }
	if err := json.Unmarshal([]byte(sent.Body), &paid); err != nil {
		return nil, errors.New("the payment provider's answer cannot be read")
	}
	o.paid = &answer{State: "paid", Message: "Thank you. Your order is paid.", Facts: [][2]string{
		{"Card", paid.Card},
		{"Payment", paid.ID},
		{"Order", o.id},
	}}
	s.log.Info("an order is paid", "order", o.id, "payment", paid.ID)
	return o.paid, nil
}

// A psp stands for the shop's payment provider, which is a system of its own. It charges a
// card once for each idempotency key.
type psp struct {
	mu      sync.Mutex
	charges map[string]string // ids of payments by idempotency key
}

func newPSP() *psp { return &psp{charges: map[string]string{}} }

func (p *psp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c struct{ Reference, Number, Month, Year, Code string }
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&c)
	key := r.Header.Get("Idempotency-Key")
	if err != nil || key == "" || len(c.Number) < 12 || len(c.Month) != 2 || len(c.Year) != 4 || len(c.Code) < 3 {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}

	p.mu.Lock()
	id := p.charges[key]
	if id == "" {
		id = fmt.Sprintf("ch_%d", len(p.charges)+1)
		keep(p.charges, key, id)
	}
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"id": id, "card": c.Number}) // the vault masks the number
}
