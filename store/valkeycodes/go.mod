module github.com/cardvault/cardvault/store/valkeycodes

go 1.26.0

require (
	github.com/cardvault/cardvault v0.0.0
	github.com/google/uuid v1.6.0
	github.com/valkey-io/valkey-go v1.0.79
)

require (
	github.com/go-jose/go-jose/v4 v4.1.8 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.etcd.io/bbolt v1.5.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/cardvault/cardvault => ../..
