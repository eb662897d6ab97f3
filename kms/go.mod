module github.com/cardvault/cardvault/kms

go 1.26.0

require (
	github.com/cardvault/cardvault v0.0.0
	github.com/cloudflare/circl v1.6.5
)

require (
	github.com/bwesterb/go-ristretto v1.2.4 // indirect
	github.com/go-jose/go-jose/v4 v4.1.8 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.etcd.io/bbolt v1.5.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/cardvault/cardvault => ..
