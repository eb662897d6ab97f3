package httpapi_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/store/memstore"
)

// A liveRig is a live vault with all defaults, a key with every scope, and a key that may
// only import.
type liveRig struct {
	vault   *cardvault.Vault
	handler http.Handler
	key     string // with every scope
	imports string // may only import
}

func newLiveRig(t *testing.T, opts *cardvault.Options) *liveRig {
	t.Helper()
	r := &liveRig{vault: openVault(t, memstore.New(), opts)}
	r.handler = newHandler(t, r.vault, nil)
	if _, err := r.vault.UpdateAccount(t.Context(), cardvault.AccountUpdate{ImportApproved: new(true)}); err != nil {
		t.Fatal(err)
	}
	for key, scopes := range map[*string][]cardvault.Scope{
		&r.key:     cardvault.AllScopes(),
		&r.imports: {cardvault.ScopeTokensImport},
	} {
		text, err := r.vault.CreateAPIKey(t.Context(), "test", scopes, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
		if err != nil {
			t.Fatal(err)
		}
		*key = text.Text.Text()
	}
	return r
}

func (r *liveRig) importAs(t *testing.T, key, number string, headers ...string) *answer {
	t.Helper()
	return r.importBody(t, key, `{"account_number":"`+number+`","expiry_month":4,"expiry_year":2031}`, headers...)
}

func (r *liveRig) importBody(t *testing.T, key, body string, headers ...string) *answer {
	t.Helper()
	return send(t, r.handler, "POST", "/cde-import", body, append([]string{"X-Api-Key", key}, headers...)...)
}

// behind returns the first n valid numbers behind a mask.
func behind(first, last string, length, n int) (numbers []string) {
	hidden := length - len(first) - len(last)
	for i := 0; len(numbers) < n && len(strconv.Itoa(i)) <= hidden; i++ {
		number := fmt.Sprintf("%s%0*d%s", first, hidden, i, last)
		if iin.Luhn([]byte(number)) {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// A key that may only import cannot compare guesses with a known card. It sees no
// fingerprint, and few guesses behind one mask are let through.
func TestFingerprintOracle(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newLiveRig(t, nil)
		known := r.importAs(t, r.key, "4111111238861234")
		known.want(t, 200)
		fingerprint := known.member(t, "fingerprint")

		numbers := behind("411111", "1234", 16, 400)
		let := 0
		for _, number := range numbers[:150] {
			a := r.importAs(t, r.imports, number)
			if a.status == 200 {
				let++
				if a.object(t)["fingerprint"] != nil || strings.Contains(a.body, fingerprint) {
					t.Fatalf("a key without the scope sees %s", a.body)
				}
				continue
			}
			a.want(t, 429, "RATE_LIMITED")
			if s := a.header.Get("Retry-After"); s != "86400" {
				t.Errorf("Retry-After is %q at the beginning of a day", s)
			}
		}
		if let != 99 { // including the known number
			t.Errorf("%d guesses were let through, want 99", let)
		}
		// The limit covers every import, with an idempotency key or under another key.
		r.importAs(t, r.imports, numbers[200], "Idempotency-Key", "k").want(t, 429, "RATE_LIMITED")
		r.importAs(t, r.key, numbers[201]).want(t, 429, "RATE_LIMITED")
		// It covers numbers that were let through before: see TestCountedOracle. Other
		// masks have limits of their own.
		r.importAs(t, r.imports, numbers[0]).want(t, 429, "RATE_LIMITED")
		r.importAs(t, r.imports, behind("411111", "1235", 16, 1)[0]).want(t, 200)
		r.importAs(t, r.imports, behind("411111", "1234", 19, 1)[0]).want(t, 200)
		// An invalid number is not counted.
		for i := range 110 {
			number := fmt.Sprintf("411111%06d1236", i)
			if !iin.Luhn([]byte(number)) {
				r.importAs(t, r.imports, number).want(t, 422, "VALIDATION_FAILED")
			}
		}
		for _, number := range behind("411111", "1236", 16, 100) {
			r.importAs(t, r.imports, number).want(t, 200)
		}

		time.Sleep(24*time.Hour - time.Second)
		a := r.importAs(t, r.imports, numbers[300])
		if a.want(t, 429); a.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After is %q a second before the end of a day", a.header.Get("Retry-After"))
		}
		time.Sleep(time.Second)
		r.importAs(t, r.imports, numbers[300]).want(t, 200)
	})
}

// An attacker who uses up the limit of a mask cannot learn which numbers others imported
// that day: their numbers are refused like any other.
func TestCountedOracle(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newLiveRig(t, nil)
		numbers := behind("411111", "1234", 16, 2000)
		const shopper = 1234
		r.importAs(t, r.key, numbers[shopper]).want(t, 200) // a shopper's
		for _, number := range numbers[:100] {
			r.importAs(t, r.imports, number)
		}
		for i, number := range numbers[100:] {
			if a := r.importAs(t, r.imports, number); a.status == 200 {
				t.Errorf("number %d is let through; the shopper's is %d", 100+i, shopper)
			}
		}
	})
}

// The fewer digits a mask hides, the fewer guesses are let through.
func TestShortPAN(t *testing.T) {
	for _, c := range []struct {
		iinLength, replicas, length, want int
		nonLuhn                           bool
	}{
		{6, 0, 12, 3, false}, // 10 candidates
		{6, 0, 13, 3, false},
		{6, 0, 14, 3, false},
		{6, 0, 15, 10, false},
		{6, 0, 19, 100, false},
		{8, 0, 16, 3, false},
		{8, 0, 19, 100, false},
		{6, 0, 15, 100, true},
		{6, 3, 16, 33, false},
		{6, 3, 12, 1, false},
		{6, 500, 16, 1, false},
	} {
		inBubble(t, func(t *testing.T) { // one day
			r := newLiveRig(t, &cardvault.Options{IINLength: c.iinLength, Replicas: c.replicas, AllowNonLuhn: c.nonLuhn})
			first := map[int]string{12: "670000", 13: "670000", 14: "670000", 15: "371449", 16: "411111", 19: "411111"}[c.length]
			if c.iinLength == 8 {
				first += "11"
			}
			let := 0
			for _, number := range behind(first, "1234", c.length, 110) {
				switch a := r.importAs(t, r.imports, number); a.status {
				case 200:
					let++
				case 429:
				default:
					a.want(t, 200)
				}
			}
			if let != c.want {
				t.Errorf("%+v: %d were let through", c, let)
			}
		})
	}
}

// Only keys with the scope see the fingerprint of a token, whichever call returns it.
func TestFingerprintScope(t *testing.T) {
	r := newRig(t, nil, nil)
	scopes := []cardvault.Scope{
		cardvault.ScopeTokensImport, cardvault.ScopeTokensRead, cardvault.ScopeTokensUpdate, cardvault.ScopeNetworkTokensProvision,
	}
	_, without := r.newKey(t, r.vault, 0, scopes...)
	_, with := r.newKey(t, r.vault, 0, append(scopes, cardvault.ScopeFingerprintsRead)...)
	id := r.importCard(t)
	for _, call := range []struct{ method, target, body, key string }{
		{"POST", "/cde-import", cardBody, ""},
		{"POST", "/cde-import", cardBody, "k"},
		{"POST", "/cde-import", cardBody, "k"}, // a replay
		{"GET", "/tokens/" + id, "", ""},
		{"GET", "/tokens?limit=1", "", ""},
		{"PATCH", "/tokens/" + id, `{"business_key":"b"}`, ""},
		{"POST", "/tokens/" + id + "/replace", cardBody, ""},
		{"POST", "/tokens/" + id + "/provisions", "", ""},
		{"POST", "/tokens/" + id + "/provisions", "", "k"},
		{"POST", "/tokens/" + id + "/provisions", "", "k"},
	} {
		for key, want := range map[string]bool{without: false, with: true} {
			headers := []string{"X-Api-Key", key}
			if call.key != "" {
				headers = append(headers, "Idempotency-Key", call.key)
			}
			a := send(t, r.handler, call.method, call.target, call.body, headers...)
			a.want(t, 200)
			if got := !strings.Contains(a.body, `"fingerprint":null`); got != want || !strings.Contains(a.body, `"fingerprint":`) {
				t.Errorf("%s %s: fingerprint shown is %t, want %t: %s", call.method, call.target, got, want, a.body)
			}
		}
	}
}

// TestAccountReferenceScope: the account reference, which is as telling, needs the scope too.
func TestAccountReferenceScope(t *testing.T) {
	r, _ := newNetworkRig(t, &wrapped{reference: "V0010013020QX4C7T5N2ZK8WJ3RHA"}, nil, nil)
	_, without := r.newKey(t, r.vault, 0, cardvault.ScopeTokensRead)
	_, with := r.newKey(t, r.vault, 0, cardvault.ScopeTokensRead, cardvault.ScopeFingerprintsRead)
	id := r.activate(t)
	for _, target := range []string{"/tokens/" + id, "/tokens?limit=1"} {
		for key, want := range map[string]bool{without: false, with: true} {
			a := send(t, r.handler, "GET", target, "", "X-Api-Key", key)
			a.want(t, 200)
			if got := strings.Contains(a.body, `"payment_account_reference":"`); got != want {
				t.Errorf("%s: account reference shown is %t, want %t: %s", target, got, want, a.body)
			}
		}
	}
}

// A consumed code cannot be guessed: a repeated request with any other code, however
// written, is a replay.
func TestSecurityCodeOracle(t *testing.T) {
	r := newLiveRig(t, nil)
	body := func(member string) string {
		return `{"account_number":"4000056655665556","expiry_month":4,"expiry_year":2031, ` + member + `}`
	}
	first := r.importBody(t, r.key, body(`"security_code":"739"`), "Idempotency-Key", "order 1")
	first.want(t, 200)
	id := first.member(t, "id")
	send(t, r.handler, "POST", "/tokens/"+id+"/consume", "", "X-Api-Key", r.key).want(t, 204)

	replays := func(code string) {
		t.Helper()
		a := r.importBody(t, r.imports, body(`"security_code":`+code), "Idempotency-Key", "order 1")
		a.want(t, 200)
		if a.header.Get("Idempotency-Replayed") != "true" || a.member(t, "id") != id {
			t.Fatalf("code %s is answered with %s", code, a.body)
		}
	}
	for n := range 1000 {
		replays(fmt.Sprintf(`"%03d"`, n))
	}
	replays(`"7390"`)
	replays(`"\u0037\u0033\u0039"`)
	replays(`null`)
	a := r.importBody(t, r.imports, body(`"security_code":739`), "Idempotency-Key", "order 1")
	a.want(t, 422, "VALIDATION_FAILED")

	// The same with the member's name escaped, under an idempotency key of its own.
	escaped := func(code string) string { return body(`"\u0073ecurity_cod\u0065" : ` + code) }
	r.importBody(t, r.key, escaped(`"739"`), "Idempotency-Key", "order 2").want(t, 200)
	for _, code := range []string{`"739"`, `"111"`, `"\u0031\u0031\u00311"`} {
		a := r.importBody(t, r.imports, escaped(code), "Idempotency-Key", "order 2")
		if a.want(t, 200); a.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("code %s is answered with %s", code, a.body)
		}
	}
	// Any other difference counts, down to the byte.
	for _, member := range []string{`"\u0073ecurity_code":"739"`, `"security_code" :"739"`} {
		r.importBody(t, r.imports, body(member), "Idempotency-Key", "order 1").want(t, 422, "IDEMPOTENCY_KEY_REUSED")
	}
}

// Other members cannot be guessed either: a key and its descendants have five tries.
func TestMistakesOfARoot(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newLiveRig(t, nil)
		const number = "4000056655665556"
		r.importAs(t, r.key, number, "Idempotency-Key", "order 1").want(t, 200)
		keys := []string{r.imports}
		for range 4 { // keys made by the first
			p, err := r.vault.Authenticate(t.Context(), keys[0])
			if err != nil {
				t.Fatal(err)
			}
			text, err := r.vault.CreateAPIKey(t.Context(), "test", []cardvault.Scope{cardvault.ScopeTokensImport}, &cardvault.APIKeyOptions{TTL: time.Hour, Creator: p.Key.ID})
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, text.Text.Text())
		}
		guesses := behind("400005", "5556", 16, 40)
		for i := range 5 {
			r.importAs(t, keys[i%len(keys)], number, "Idempotency-Key", "order 1").want(t, 200)
			r.importAs(t, keys[i%len(keys)], guesses[i], "Idempotency-Key", "order 1").want(t, 422, "IDEMPOTENCY_KEY_REUSED")
		}
		for _, key := range keys {
			r.importAs(t, key, number, "Idempotency-Key", "order 1").want(t, 422, "IDEMPOTENCY_KEY_REUSED")
		}
		r.importAs(t, r.imports, number, "Idempotency-Key", "order 2").want(t, 200)
		a := r.importAs(t, r.key, number, "Idempotency-Key", "order 1")
		if a.want(t, 200); a.header.Get("Idempotency-Replayed") != "true" {
			t.Error("another root is not answered with its replay")
		}
		// Each try counts towards the limit of its mask, like any import.
		let := 0
		for i, number := range behind("400005", "5556", 16, 110) {
			if r.importAs(t, r.key, number, "Idempotency-Key", fmt.Sprint("other ", i)).status == 200 {
				let++
			}
		}
		if let != 99 { // including the known number
			t.Errorf("%d numbers were let through, want 99", let)
		}
	})
}

// The id of a session is a credential: an expired session is not replayed.
func TestIdempotentSession(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newLiveRig(t, nil)
		other, err := r.vault.CreateAPIKey(t.Context(), "test", []cardvault.Scope{cardvault.ScopeSessionsCreate}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
		if err != nil {
			t.Fatal(err)
		}
		token := r.importAs(t, r.key, "4000056655665556").member(t, "id")
		for path, keys := range map[string][]string{
			"/tokens/session":                       {r.key, other.Text.Text()},
			"/tokens/" + token + "/refresh-session": {r.key},
			"/tokens/" + token + "/replace-session": {r.key},
		} {
			start := time.Now()
			call := func(key string) *answer {
				return send(t, r.handler, "POST", path, "", "X-Api-Key", key, "Idempotency-Key", "k")
			}
			first := call(r.key)
			first.want(t, 200)
			time.Sleep(15*time.Minute - time.Second)
			for _, key := range keys {
				if a := call(key); a.body != first.body {
					t.Errorf("%s: %d %s, want %s", path, a.status, a.body, first.body)
				}
			}
			time.Sleep(time.Second)
			for range 3 {
				for _, key := range keys {
					call(key).want(t, 404, "NOT_FOUND")
				}
				if err := r.vault.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(7 * time.Hour)
			}
			time.Sleep(time.Until(start.Add(24 * time.Hour)))
			if a := call(r.key); a.status != 200 || a.body == first.body {
				t.Errorf("%s after a day: %d %s", path, a.status, a.body)
			}
		}
	})
}

// Sessions do not get around the limit. A session that it refuses stays open, and keeps all
// its tries.
func TestNumbersInSessions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(t, &cardvault.Options{Replicas: 100}, nil) // one number a day
		complete := func(id, number string) *answer {
			session := send(t, r.handler, "GET", "/sessions/"+id, "")
			claims := fmt.Sprintf(`{"account_number":%q,"expiry_month":4,"expiry_year":2031,"security_code":"123"}`, number)
			return send(t, r.handler, "POST", "/sessions/"+id+"/complete-action", completion(t, session, claims, ""))
		}
		open := func() string {
			a := r.do(t, "POST", "/tokens/session", "")
			return a.member(t, "session_id")
		}
		numbers := behind("411111", "1234", 16, 40)
		complete(open(), numbers[0]).want(t, 200)
		id := open()
		for _, number := range numbers[1:10] {
			a := complete(id, number)
			a.want(t, 429, "RATE_LIMITED")
			if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 1 || n > 86400 {
				t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
			}
		}
		r.do(t, "POST", "/cde-import", strings.Replace(cardBody, pan, numbers[1], 1)).want(t, 429, "RATE_LIMITED")
		if a := complete(id, pan); a.status != 200 || !strings.Contains(a.body, `"status":"success"`) {
			t.Errorf("the session accepts no other card: %d %s", a.status, a.body)
		}
	})
}

// The limit holds exactly for concurrent imports.
func TestNumbersRace(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newLiveRig(t, nil)
		var wg sync.WaitGroup
		var mu sync.Mutex
		let := 0
		for _, number := range behind("411111", "1234", 16, 1000) {
			wg.Go(func() {
				if r.importAs(t, r.imports, number).status == 200 {
					mu.Lock()
					defer mu.Unlock()
					let++
				}
			})
		}
		wg.Wait()
		if let != 100 {
			t.Errorf("%d of 1000 were let through, want 100", let)
		}
	})
}
