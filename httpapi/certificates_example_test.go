package httpapi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/store/memstore"
)

// Partners maps the common names of client certificates to callers.
type partners struct {
	vault    *cardvault.Vault
	accounts map[string]*cardvault.Vault // handles on the accounts of partners
}

// Authenticate implements [httpapi.Authenticator].
func (p partners) Authenticate(r *http.Request) (*httpapi.Principal, error) {
	// VerifiedChains, not PeerCertificates: those are not verified.
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return httpapi.APIKeys(p.vault).Authenticate(r)
	}

	name := r.TLS.VerifiedChains[0][0].Subject.CommonName
	in := p.accounts[name]
	if in == nil {
		return nil, cardvault.ErrUnauthenticated
	}
	account, err := in.Account(r.Context())
	if err != nil {
		return nil, err
	}
	return &httpapi.Principal{
		Account:   account,
		Name:      name,
		Scopes:    []cardvault.Scope{cardvault.ScopeTokensRead},
		RateLimit: httpapi.RateLimit{PerSecond: 5},
	}, nil
}

// Callers authenticate by client certificate or by API key.
func ExampleAuthenticator() {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize)) // use a random key
	if err != nil {
		log.Fatal(err)
	}
	v, err := cardvault.New(context.Background(), memstore.New(), keys, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()

	h, err := httpapi.NewHandler(v, &httpapi.Options{
		Authenticator: partners{v, map[string]*cardvault.Vault{"shop": v}},
	})
	if err != nil {
		log.Fatal(err)
	}

	ca := newAuthority()
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: ca.pool()}
	server.StartTLS()
	defer server.Close()

	for _, name := range []string{"shop", "stranger", ""} {
		transport := server.Client().Transport.(*http.Transport).Clone()
		if name != "" {
			transport.TLSClientConfig.Certificates = []tls.Certificate{ca.issue(name)}
		}
		answer, err := (&http.Client{Transport: transport}).Get(server.URL + "/tokens")
		if err != nil {
			log.Fatal(err)
		}
		answer.Body.Close()
		fmt.Printf("%q: %s\n", name, answer.Status)
		transport.CloseIdleConnections()
	}

	// Output:
	// "shop": 200 OK
	// "stranger": 401 Unauthorized
	// "": 401 Unauthorized
}

// An authority issues the client certificates of the example.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority() *authority {
	a := &authority{key: newKey()}
	a.cert = a.sign("partners", a.key, nil)
	return a
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *authority) issue(name string) tls.Certificate {
	key := newKey()
	return tls.Certificate{Certificate: [][]byte{a.sign(name, key, a.cert).Raw}, PrivateKey: key}
}

// sign issues a certificate for a name. Without a parent the certificate is self-signed and
// a CA.
func (a *authority) sign(name string, key *ecdsa.PrivateKey, parent *x509.Certificate) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		log.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		log.Fatal(err)
	}
	return cert
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	return key
}
