package payone

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/cardvault/cardvault/internal/discreet"
)

// A connectError reports that nothing was sent, and why. It quotes nothing of the request.
type connectError struct {
	step  string
	cause error
}

func (e *connectError) Error() string { return "payone: " + e.step + ": " + e.cause.Error() }
func (e *connectError) Unwrap() error { return e.cause }

// guarded returns a connection from which http.Transport cannot leak: neither the request,
// nor bytes after an answer, which could be the request.
func guarded(c net.Conn) net.Conn { return discreet.Quiet(discreet.Erasing(c)) }

// connect connects to a provider on a loopback host. After the call, the transport keeps
// the connection for the next one.
func (c *Client) connect(ctx context.Context, _, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := c.reach(ctx, address)
	if err != nil {
		return nil, err
	}
	return guarded(conn), nil
}

// connectTLS connects to a provider with https. TLS is made here, also through a
// proxy, because an erasing connection has to be above it.
func (c *Client) connectTLS(ctx context.Context, _, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := c.tunnel(ctx, address)
	if err != nil {
		return nil, err
	}
	config := c.tls
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = c.url.Hostname()
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // nothing was sent that matters
		return nil, &connectError{"TLS", err}
	}
	return guarded(secure), nil
}

func (c *Client) reach(ctx context.Context, address string) (net.Conn, error) {
	conn, err := c.dial(ctx, "tcp", address)
	if err != nil {
		if e, ok := errors.AsType[*net.OpError](err); ok {
			err = e.Err // without addresses
		}
		return nil, &connectError{"dial", err}
	}
	return conn, nil
}

// tunnel returns a connection to address, through a proxy if there is one.
func (c *Client) tunnel(ctx context.Context, address string) (net.Conn, error) {
	if c.proxy == nil {
		return c.reach(ctx, address)
	}
	proxy, err := c.proxy(&http.Request{Method: http.MethodPost, URL: c.url, Host: c.url.Host, Header: http.Header{}})
	switch {
	case err != nil:
		return nil, &connectError{"proxy", err}
	case proxy == nil:
		return c.reach(ctx, address)
	case proxy.Scheme != "http":
		return nil, &connectError{"proxy", errors.New("must be http")}
	}

	port := proxy.Port()
	if port == "" {
		port = "80"
	}
	conn, err := c.reach(ctx, net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, err
	}

	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = ask(conn, proxy.User, address)
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, &connectError{"proxy", err}
	}
	return conn, nil
}

// ask has a proxy connect conn to address.
func ask(conn net.Conn, user *url.Userinfo, address string) error {
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if user != nil {
		password, _ := user.Password()
		r.SetBasicAuth(user.Username(), password)
		r.Header["Proxy-Authorization"] = r.Header["Authorization"]
		r.Header.Del("Authorization")
	}

	if err := r.Write(conn); err != nil {
		return errors.New("connection is lost")
	}

	// No byte of the provider is read ahead: it speaks when it is spoken to.
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxHeader)), r)
	switch {
	case err != nil:
		return errors.New("answer is not HTTP, or the connection is lost")
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	return nil
}
