package webhook_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/webhook"
	"github.com/cardvault/cardvault/webhook/webhooktest"
	"github.com/google/uuid"
)

// A sender that used these proxies would reach nothing at all.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"} {
		if err := os.Setenv(name, "http://127.0.0.1:1"); err != nil {
			log.Fatal(err)
		}
	}
	goroutines.Verify(m)
}

// secret returns a secret of n bytes.
func secret(fill byte, n int) receive.WebhookSecret {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, n))
	return receive.NewWebhookSecret([]byte("whsec_" + key))
}

var (
	former = secret(1, 32)
	newest = secret(2, 32)
)

func delivery(url string) *cardvault.Delivery {
	d := &cardvault.Delivery{
		ID:        uuid.MustParse("7d7f3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"),
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
		URL:       url,
		Secrets:   []receive.WebhookSecret{newest},
	}
	d.Event = &cardvault.Event{
		ID:        d.ID,
		CreatedAt: d.CreatedAt,
		Type:      receive.TokenUpdated,
		Reason:    receive.ReasonPatched,
		TokenID:   uuid.MustParse("1b2d3a52-6f0e-4d0b-8a43-0d2f9ddc2b11"),
		Sequence:  1042,
	}
	d.Event.Token = &cardvault.Token{
		ID:             d.Event.TokenID,
		CreatedAt:      d.CreatedAt,
		CardholderName: card.NewName([]byte("Zoë \"Z\" Quux")),
		Expiry:         card.Expiry{Month: 4, Year: 2031},
		IIN:            "424242",
		LastFour:       "4242",
	}
	return d
}

// An inbox is a receiver, and a sender to it.
type inbox struct {
	*webhooktest.Receiver
	*webhook.Sender
	url         string
	connections atomic.Int64
}

func open(t testing.TB, secure bool, opts webhook.Options) *inbox {
	t.Helper()
	in := &inbox{Receiver: webhooktest.New(former, newest)}
	server := httptest.NewUnstartedServer(in.Receiver)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			in.connections.Add(1)
		}
	}
	if secure {
		server.StartTLS()
		opts.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	opts.AllowPrivateTargets = true
	in.url = server.URL
	in.Sender = webhook.New(&opts)
	t.Cleanup(in.Sender.Close)
	return in
}

// bothWays runs f over TLS and without.
func bothWays(t *testing.T, opts webhook.Options, f func(t *testing.T, in *inbox)) {
	t.Run("http", func(t *testing.T) { f(t, open(t, false, opts)) })
	t.Run("https", func(t *testing.T) { f(t, open(t, true, opts)) })
}

// patience limits deliveries that end by themselves. Those that take half of it hang.
const patience = time.Minute

func (in *inbox) send(t testing.TB) (*cardvault.SendResult, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return in.Send(ctx, delivery(in.url+"/hook?canary=6011000990139424"))
}

// works fails t unless a delivery arrives.
func (in *inbox) works(t testing.TB) {
	t.Helper()
	before := len(in.Deliveries())
	got, err := in.send(t)
	if err != nil || got.StatusCode != 204 {
		t.Errorf("Send = %+v, %v", got, err)
		return
	}
	all := in.Deliveries()
	if len(all) != before+1 || all[before].Err != nil {
		t.Errorf("%d deliveries arrived, the last with %v", len(all)-before, all[len(all)-1].Err)
	}
}

// listen counts the connections to a port on all local addresses.
func listen(t testing.TB) (port string, count func() int64) {
	t.Helper()
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, n.Load
}
