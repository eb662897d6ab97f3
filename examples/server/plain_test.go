package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/hashicorp/golang-lru/v2/expirable"
)

// plainTTL limits the time that the plain server keeps a security code.
const plainTTL = 2 * time.Second

// plain is a server with a naive store of security codes. The search of TestAbsence is
// tested on it.
func plain() {
	codes := expirable.NewLRU[string, string](1000, nil, plainTTL)
	http.HandleFunc("POST /import", func(w http.ResponseWriter, r *http.Request) {
		var card struct {
			Number string `json:"account_number"`
			Code   string `json:"security_code"`
		}
		if err := json.NewDecoder(r.Body).Decode(&card); err != nil {
			http.Error(w, "no card", http.StatusBadRequest)
			return
		}
		codes.Add(strconv.Itoa(codes.Len()), card.Code)
	})
	http.HandleFunc("POST /collect", func(http.ResponseWriter, *http.Request) {
		runtime.GC()
		runtime.GC()
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("http://" + listener.Addr().String())
	fmt.Fprintln(os.Stderr, http.Serve(listener, nil))
}
