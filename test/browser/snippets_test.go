package browser_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/doctest"
	"github.com/evanw/esbuild/pkg/api"
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

	for _, of := range frameworks {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			testFramework(t, of)
		})
	}

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

// A framework runs a component of docs/card-entry.md in a page.
type framework struct {
	name string
	main string                                            // renders Pay into #app, with its session and a function that takes the id of a token
	code func(t *testing.T, page string) map[string]string // the files beside main
}

var frameworks = []framework{
	{"React", `import { createRoot } from "react-dom/client";
import { createElement } from "react";
import { Pay } from "./pay.tsx";
createRoot(app).render(createElement(Pay, { session: app.dataset.session, onToken }));`, func(t *testing.T, page string) map[string]string {
		return map[string]string{"pay.tsx": block(t, page, "tsx")}
	}},
	{"Vue", `import { createApp } from "vue";
import Pay from "./pay.js";
createApp(Pay, { session: app.dataset.session, onToken }).mount(app);`, func(t *testing.T, page string) map[string]string {
		return map[string]string{"pay.js": compileVue(t, page)}
	}},
}

// block returns the only block of a language in a page of docs.
func block(t *testing.T, page, language string) string {
	t.Helper()
	var found []string
	doctest.Snippets(page, func(_, is, code string) {
		if is == language {
			found = append(found, code)
		}
	})
	if len(found) != 1 {
		t.Fatalf("%d blocks of %s", len(found), language)
	}
	return found[0]
}

// compileVue compiles the component of a page, with the option that the page names.
func compileVue(t *testing.T, page string) string {
	t.Helper()
	option := regexp.MustCompile("`compilerOptions\\.(isCustomElement = [^`]+)`").FindStringSubmatch(page)
	if option == nil {
		t.Fatal("the page does not name isCustomElement")
	}
	cmd := exec.CommandContext(t.Context(), "node", "--input-type=module", "--eval", `
		import { readFileSync } from "node:fs";
		import { compileScript, parse } from "vue/compiler-sfc";
		const compilerOptions = {};
		compilerOptions.`+option[1]+`;
		const { descriptor, errors } = parse(readFileSync(0, "utf8"));
		if (errors.length) throw errors[0];
		console.log(compileScript(descriptor, { id: "pay", inlineTemplate: true, templateOptions: { compilerOptions } }).content);`)
	cmd.Dir = ".."
	cmd.Stdin = strings.NewReader(block(t, page, "vue"))
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &complaints)
	}
	return string(out)
}

// bundled returns a program of a framework as one script.
func bundled(t *testing.T, of framework) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, code := range of.code(t, source(t, "docs/card-entry.md")) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	packages, err := filepath.Abs("../node_modules")
	if err != nil {
		t.Fatal(err)
	}
	main := `const app = document.querySelector("#app");
const onToken = (id) => { globalThis.ordered = id; };
` + of.main
	result := api.Build(api.BuildOptions{
		Stdin:         &api.StdinOptions{Contents: main, ResolveDir: dir},
		AbsWorkingDir: dir,
		NodePaths:     []string{packages},
		Bundle:        true,
		Format:        api.FormatESModule,
		JSX:           api.JSXAutomatic,
		Define: map[string]string{
			"process.env.NODE_ENV":                    `"production"`,
			"__VUE_OPTIONS_API__":                     "false",
			"__VUE_PROD_DEVTOOLS__":                   "false",
			"__VUE_PROD_HYDRATION_MISMATCH_DETAILS__": "false",
		},
	})
	if len(result.Errors) > 0 {
		t.Fatal(api.FormatMessages(result.Errors, api.FormatMessagesOptions{}))
	}
	return result.OutputFiles[0].Contents
}

// testFramework pays with a component of docs/card-entry.md.
func testFramework(t *testing.T, of framework) {
	if _, err := os.Stat("../node_modules/vue"); err != nil {
		t.Skip("React and Vue are not installed (npm ci --prefix test --ignore-scripts)")
	}
	program := bundled(t, of)
	r := newRig(t, nil)
	r.other.mux.HandleFunc("GET /app.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		_, _ = w.Write(program)
	})

	// The element comes later than this script. Its events do not bubble.
	p := r.page(t, r.newSession(), `<script>
		const events = [];
		Object.defineProperty(globalThis, "card", { get: () => document.querySelector("card-entry") });
		for (const type of ['ready', 'change', 'success', 'error']) {
			document.addEventListener(type, ({ detail }) => events.push({ type, detail }), true);
		}
		</script>
		<div id="app" data-session="…"></div>
		<script type="module" src="https://vault.example/vault/sdk/v1/card-entry.js"></script>
		<script type="module" src="/app.js"></script>`)
	p.await("ready")
	p.enter()
	p.enterCard(visa)
	p.wait(`events.at(-1).detail.complete`)
	p.do(`document.querySelector("#app button").click()`)
	d := p.await("success")
	p.wantToken(d, "411111******0005")
	p.wait(`globalThis.ordered === %s`, d.TokenID)
}
