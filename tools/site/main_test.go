package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSite: every link of the site leads to a page, a heading or the repository.
func TestSite(t *testing.T) {
	out := t.TempDir()
	if err := build(filepath.Join("..", "..", "docs"), out, "https://repository.example"); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(out, "*.html"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d pages, %v", len(files), err)
	}

	pages := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(file)] = string(text)
	}
	for from, text := range pages {
		for _, picture := range regexp.MustCompile(`<img src="([^"]+)"`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(out, picture[1])); err != nil {
				t.Errorf("%s shows %s: %v", from, picture[1], err)
			}
		}
		for _, link := range regexp.MustCompile(`href="([^"]+)"`).FindAllStringSubmatch(text, -1) {
			to, anchor, _ := strings.Cut(link[1], "#")
			if to == "" {
				to = from
			}
			if path, ours := strings.CutPrefix(to, "https://repository.example/"); ours {
				if _, err := os.Stat(filepath.Join("..", "..", path)); err != nil {
					t.Errorf("%s links to %s: %v", from, path, err)
				}
				continue
			}
			if strings.Contains(to, ":") {
				continue
			}
			if pages[to] == "" || anchor != "" && !strings.Contains(pages[to], ` id="`+anchor+`"`) {
				t.Errorf("%s links to %s", from, link[1])
			}
		}
	}
}
