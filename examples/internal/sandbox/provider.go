package sandbox

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/payone/payonetest"
	"github.com/cardvault/cardvault/simnet"
)

// A provider is the sandbox's payment provider, which takes requests for pseudo
// card numbers on a port of its own, with a client for it.
type provider struct {
	*payone.Client
	server *http.Server
}

// startProvider starts a provider at which cards fare as the simulator has it.
func startProvider(network *simnet.Network, log *slog.Logger) (*provider, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}

	client, err := payone.New("http://"+listener.Addr().String()+"/client-api/", nil)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}

	p := &provider{client, &http.Server{
		Handler:           payonetest.NewHandler(simnet.PortalKey, network.PPAN()),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}

	go func() {
		if err := p.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the simulated payment provider has stopped", "error", err)
		}
	}()
	return p, nil
}

// Close ends running calls.
func (p *provider) Close() error {
	p.Client.Close()
	return p.server.Close()
}
