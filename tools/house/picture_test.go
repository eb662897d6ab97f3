package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPicture(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m\n")
	write("m.go", "package m\nimport (_ \"m/low\"; _ \"m/middle\"; _ \"fmt\")\n")
	write("middle/m.go", "package middle\nimport _ \"m/low\"\n")
	write("low/l.go", "package low\n")
	write("examples/e.go", "package examples\nimport _ \"m\"\n")
	write("DESIGN.md", "# Design\n"+pictureBegin+"none yet\n"+pictureEnd+"the rest\n")

	h, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.checkPicture(dir); err == nil {
		t.Error("a picture of another house is accepted")
	}
	if err := h.drawPicture(dir); err != nil {
		t.Fatal(err)
	}
	if err := h.checkPicture(dir); err != nil {
		t.Error(err)
	}

	text, err := os.ReadFile(filepath.Join(dir, "DESIGN.md"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "# Design\n" + pictureBegin + `2  cardvault  rests on middle
1  middle     rests on low
0  low
` + pictureEnd + "the rest\n"
	if string(text) != want {
		t.Errorf("drew\n%s", text)
	}
}
