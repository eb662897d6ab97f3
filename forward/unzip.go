package forward

import (
	"bytes"
	"compress/gzip"
	"io"
	"sync"
)

var unzippers = sync.Pool{New: func() any { return new(gzip.Reader) }}

// window is how much of a text decompression keeps: RFC 1951, section 2.
const window = 32 << 10

// blank is compressed text as long as the window.
var blank = func() []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(make([]byte, window)) // a Buffer takes everything
	_ = z.Close()
	return b.Bytes()
}()

// unzip decompresses an answer. ok is false for a text that is longer than most bytes, and for
// an answer that is not compressed text: the caller erases what there is of it.
func unzip(packed []byte, most int) (text []byte, ok bool) {
	z := unzippers.Get().(*gzip.Reader)
	defer func() {
		if z.Reset(bytes.NewReader(blank)) == nil {
			if n, _ := io.Copy(io.Discard, z); n == window { // over the text
				unzippers.Put(z)
			}
		}
	}()

	if z.Reset(bytes.NewReader(packed)) != nil {
		return nil, false
	}
	text, err := readAll(z, min(512, most+1), most)
	return text, err == nil && len(text) <= most
}
