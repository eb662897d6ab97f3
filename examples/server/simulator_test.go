package main

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/google/uuid"
)

// TestControl changes stored cards as their scheme would.
func TestControl(t *testing.T) {
	p := start(t, t.TempDir())
	do := func(id, action string) {
		t.Helper()
		if answer := p.Want(t, 202, p.Accounts[0].APIKey, "POST", "/simulator/tokens/"+id+"/"+action, ""); answer != nil {
			t.Errorf("%s answers %v", action, answer)
		}
	}
	k := p.Follow(t, p.Import(t, "4242424242424242"), "pending", "active")
	do(k.ID(), "suspend")
	p.Follow(t, k, "active", "inactive suspended_by_issuer")
	p.WantFailure(t, k.ID(), "scheme", "network_token_inactive", false)
	do(k.ID(), "resume")
	k = p.Follow(t, p.Get(t, k.ID()), "inactive suspended_by_issuer", "active")
	do(k.ID(), "renew")
	k = p.Until(t, k, "expiry_year")
	if k["expiry_year"] != 2033.0 || k["account_number_last_four"] != "4242" {
		t.Errorf("renewed, the card is %v %v", k["masked_account_number"], k["expiry_year"])
	}
	do(k.ID(), "replace")
	k = p.Until(t, k, "account_number_last_four")
	if k["masked_account_number"] != "424242******2424" || k["expiry_year"] != 2037.0 || k.State() != "active" {
		t.Errorf("replaced, the card is %v %v", k["masked_account_number"], k["expiry_year"])
	}
	p.WantCredential(t, k.ID())
	do(k.ID(), "delete")
	p.Follow(t, k, "active", "deleted deleted_by_issuer")

	other := p.Follow(t, p.Import(t, "4111110000000005"), "pending", "active")
	do(other.ID(), "invalidate")
	if other = p.Follow(t, other, "active", "deleted account_closed invalid"); other["invalidated_at"] == nil {
		t.Error("invalidated_at is null")
	}

	// JCB cards have no network token here.
	for _, id := range []string{other.ID(), p.Import(t, "3566000000000000").ID()} {
		for _, outcome := range []string{"updated", "expiry_changed", "closed", "contact_cardholder", "opted_out", "no_match"} {
			do(id, "report/"+outcome)
		}
	}

	for _, c := range []struct {
		status           int
		method, key      string
		path, classifier string
	}{
		{409, "POST", p.Accounts[0].APIKey, k.ID() + "/suspend", "NETWORK_TOKEN_STATE_CONFLICT"}, // its network token is deleted
		{404, "POST", p.Accounts[1].APIKey, k.ID() + "/suspend", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, uuid.NewString() + "/suspend", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, "1/suspend", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, "/suspend", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, "%7b" + k.ID() + "%7d/suspend", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, k.ID() + "/explode", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, k.ID() + "/suspend/", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, k.ID(), "NOT_FOUND"},
		{404, "POST", p.Accounts[1].APIKey, k.ID() + "/report/updated", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, k.ID() + "/report", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, k.ID() + "/report/", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, k.ID() + "/report/perhaps", "NOT_FOUND"},
		{404, "POST", p.Accounts[0].APIKey, k.ID() + "/report/updated/", "NOT_FOUND"},
		{405, "GET", p.Accounts[0].APIKey, k.ID() + "/suspend", "METHOD_NOT_ALLOWED"},
		{401, "POST", "", k.ID() + "/suspend", "UNAUTHORIZED"},
		{401, "POST", p.Accounts[0].APIKey + "x", k.ID() + "/suspend", "UNAUTHORIZED"},
	} {
		r, err := http.NewRequest(c.method, p.BaseURL+"/simulator/tokens/"+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.key != "" {
			r.Header.Set("X-Api-Key", c.key)
		}
		requestID := uuid.NewString()
		r.Header.Set("X-Request-Id", requestID)
		status, header, body := send(t, r)
		// The REST API refuses in the same form.
		r.URL.Path = "/nothing"
		_, model, modelBody := send(t, r)
		var got, form map[string]any
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(modelBody, &form); err != nil {
			t.Fatal(err)
		}
		if status != c.status || got["classifier"] != c.classifier || status == 404 && string(body) != string(modelBody) {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
		for name := range form {
			if got[name] == nil {
				t.Errorf("%s %s: no member %s", c.method, c.path, name)
			}
		}
		for name, value := range model {
			if name != "Date" && name != "Content-Length" && !slices.Equal(header[name], value) {
				t.Errorf("%s %s: header %s is %q, want %q", c.method, c.path, name, header[name], value)
			}
		}
		if allow := header.Get("Allow"); (c.status == 405) != (allow == "POST") {
			t.Errorf("Allow is %q", allow)
		}
		if (c.status == 401) != (header.Get("Www-Authenticate") == `ApiKey realm="cardvault"`) {
			t.Errorf("WWW-Authenticate is %q", header.Get("Www-Authenticate"))
		}
	}
}

func send(t *testing.T, r *http.Request) (status int, h http.Header, body []byte) {
	t.Helper()
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if body, err = io.ReadAll(w.Body); err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, w.Header, body
}
