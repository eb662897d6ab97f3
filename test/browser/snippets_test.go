package browser_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/doctest"
	"github.com/google/uuid"
)

// source returns a file of the repository.
func source(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks returns the blocks of code in the comment of a package.
func blocks(comment string) (all []string) {
	within := false
	for line := range strings.Lines(comment) {
		code, is := strings.CutPrefix(line, "//\t")
		switch {
		case strings.HasPrefix(line, "package "):
			return all
		case is && !within:
			all = append(all, code)
		case is:
			all[len(all)-1] += code
		}
		within = is
	}
	return all
}

// A listener records the events of the element, as shop.js does.
const listener = `<script>
const card = document.querySelector('card-entry');
const events = [];
for (const type of ['ready', 'change', 'success', 'error']) {
  card.addEventListener(type, ({ detail }) => events.push({ type, detail }));
}
</script>
`

// page returns a shop's page with an HTML body, in which the vault's address is replaced by
// the rig's.
func (r *rig) page(t *testing.T, session, body string) *tab {
	t.Helper()
	const vault = "https://vault.example/vault"
	if !strings.Contains(body, vault) || !strings.Contains(body, `"…"`) {
		t.Fatalf("no vault or session in %s", body)
	}
	body = strings.NewReplacer(vault, r.base, `"…"`, fmt.Sprintf("%q", session)).Replace(body)
	r.other.mux.HandleFunc("GET /snippet", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = fmt.Fprintf(w, "<!doctype html><html lang=en><meta charset=utf-8><title>Shop</title><link rel=icon href=data:,>%s", body)
	})
	return r.open(visit{path: "/snippet"})
}

// TestSnippets pays on pages made of the code in documents.
func TestSnippets(t *testing.T) {
	t.Parallel()
	t.Run("docs/card-entry.md", func(t *testing.T) {
		t.Parallel()
		testForm(t)
	})

	t.Run("cardentry", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		code := blocks(source(t, "httpapi/cardentry/cardentry.go"))
		if len(code) != 3 {
			t.Fatalf("blocks %q", code)
		}
		p := r.page(t, r.newSession(), fmt.Sprintf(`<style>%s</style>%s<button>Pay</button>%s<script>
			let ordered = "";
			const order = (token) => { ordered = token; };
			const renew = async () => "";
			const button = document.querySelector("button");
			</script><script type="module">%s</script>`, code[2], code[0], listener, code[1]))
		p.await("ready")
		want(&p.world, "#0a7d4f", `getComputedStyle(card).getPropertyValue("--card-entry-accent-color")`)
		p.enter()
		p.enterCard(visa)
		p.wait(`events.at(-1).detail.complete`)
		p.do(`button.click()`)
		d := p.await("success")
		p.wantToken(d, "411111******0005")
		want(&p.world, d.TokenID, `ordered`)
	})
}

// testForm pays with the form of docs/card-entry.md.
func testForm(t *testing.T) {
	r := newRig(t, nil)
	paid := make(chan string, 1)
	r.other.mux.HandleFunc("POST /pay", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = fmt.Fprint(w, "<!doctype html><html lang=en><title>Paid</title><link rel=icon href=data:,>Paid")
		paid <- req.FormValue("token")
	})
	body, style := "", ""
	doctest.Snippets(source(t, "docs/card-entry.md"), func(_, language, code string) {
		switch language {
		case "html":
			body += code
		case "css":
			style += code
		}
	})

	// The session has expired, so the page asks for a new one.
	p := r.page(t, uuid.NewString(), fmt.Sprintf("<style>%s</style>%s%s<script>const newSessionFromYourServer = async () => %q;</script>",
		style, body, listener, r.newSession()))
	p.allow(`404`)
	p.wait(`events.some((e) => e.type === "ready")`)
	want(&p.world, "8px", `getComputedStyle(card).getPropertyValue("--card-entry-border-radius")`)
	p.enter()
	p.enterCard(visa)
	p.wait(`events.at(-1).detail.complete`)
	p.do(`document.querySelector("form button").click()`)
	select {
	case id := <-paid:
		if token := r.token(id); token.MaskedAccountNumber != "411111******0005" {
			t.Errorf("paid with %s", token.MaskedAccountNumber)
		}
	case <-time.After(patience):
		t.Fatal("nothing is paid")
	}
}
