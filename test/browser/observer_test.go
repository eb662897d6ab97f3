package browser_test

import (
	"strings"
	"testing"
	"time"
)

// TestObserver causes each problem that fails the other tests. If a problem were not
// noticed here, its absence elsewhere would prove nothing.
func TestObserver(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{shop: r.abroad})
	frame := &world{t: t, ctx: p.frame.ctx} // as its own scripts see it
	for where, w := range map[string]*world{"page": &p.world, "frame": frame} {
		for fault, test := range map[string]struct{ script, problem string }{
			"log":       {`console.debug("told")`, `console.debug: "told"`},
			"exception": {`void setTimeout(() => { throw new Error("thrown"); })`, "exception: Uncaught Error: thrown"},
			"rejection": {`void Promise.reject(new Error("rejected"))`, "exception: Uncaught (in promise) Error: rejected"},
			"request":   {`void document.head.append(Object.assign(document.createElement("link"), {rel: "stylesheet", href: "/nowhere.css"}))`, "Stylesheet failed"},
			"style":     {`void document.body.setAttribute("style", "color: red")`, "Applying inline style violates"},
			"fetch":     {`void fetch("https://vault.example/").catch(() => {})`, "ContentSecurityPolicyIssue"},
			"markup":    {`void (() => { try { document.body.innerHTML += ""; } catch {} })()`, "TrustedHTML"},
		} {
			w.do(test.script)
			for end := time.Now().Add(patience); !p.forget(test.problem); {
				if time.Now().After(end) {
					t.Errorf("%s: the %s went unnoticed", where, fault)
					break
				}
				w.do(`new Promise((done) => setTimeout(done))`)
			}
		}
	}
}

// forget announces problems that match, and reports whether there were any.
func (p *tab) forget(problem string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seen := range p.problems {
		if strings.Contains(seen, problem) {
			p.problems = nil
			return true
		}
	}
	return false
}
