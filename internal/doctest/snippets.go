// Package doctest compares what documents say with the code.
package doctest

import "strings"

// Snippets calls f with each block of code of a Markdown document: the last heading before
// it, its language, such as go or sh, and the code with the newline at its end.
func Snippets(document string, f func(heading, language, code string)) {
	heading, language, code := "", "", ""
	within := false
	for line := range strings.Lines(document) {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && within:
			f(heading, language, code)
			within = false
		case isFence:
			language, code = strings.TrimSpace(fence), ""
			within = true
		case within:
			code += line
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
}
