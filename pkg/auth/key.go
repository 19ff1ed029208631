package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
)

// MinSecret is the fewest bytes of a shared secret.
const MinSecret = 32

// minRSA is the fewest bits of an RSA key.
const minRSA = 2048

// maxKeyFile is the largest key file that is read.
const maxKeyFile = 64 << 10

// The algorithms a key may be pinned to.
const (
	algHS256 = "HS256"
	algRS256 = "RS256"
	algES256 = "ES256"
	algEdDSA = "EdDSA"
)

var algorithms = []string{algHS256, algRS256, algES256, algEdDSA}

func knownAlgorithm(a string) bool { return slices.Contains(algorithms, a) }

// Key is a shared secret for HS256.
type Key struct {
	ID     string // goes into the header kid
	Secret []byte // at least MinSecret bytes
}

// pinned is a key with the one algorithm it may be used with.
type pinned struct {
	id, alg string
	key     any // []byte or a public key
}

// loadKey reads the file of one configured key.
func loadKey(r keyRef) (pinned, error) {
	fail := func(err error) (pinned, error) { return pinned{}, fmt.Errorf("auth: key %q: %w", r.id, err) }
	info, err := os.Stat(r.file)
	if err != nil {
		return fail(err)
	}
	if info.Size() > maxKeyFile {
		return fail(fmt.Errorf("%s is larger than 64 KiB", r.file))
	}
	if r.alg == algHS256 && info.Mode().Perm()&0o077 != 0 {
		return fail(fmt.Errorf("%s may be read by others than its owner: chmod 600 it", r.file))
	}
	data, err := os.ReadFile(r.file)
	if err != nil {
		return fail(err)
	}
	key, err := parseKey(r.alg, data)
	if err != nil {
		return fail(fmt.Errorf("%s: %w", r.file, err))
	}
	return pinned{id: r.id, alg: r.alg, key: key}, nil
}

// parseKey turns a file's bytes into a key that fits the algorithm.
func parseKey(alg string, data []byte) (any, error) {
	if alg == algHS256 {
		secret := bytes.TrimRight(data, "\r\n")
		if len(secret) < MinSecret {
			return nil, fmt.Errorf("the secret has %d bytes; %d are the least", len(secret), MinSecret)
		}
		return secret, nil
	}
	pub, err := parsePublicPEM(data)
	if err != nil {
		return nil, err
	}
	return fitKey(alg, pub)
}

func parsePublicPEM(data []byte) (any, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return c.PublicKey, nil
	}
	return nil, fmt.Errorf("a public key is wanted, not a PEM block %q", block.Type)
}

func fitKey(alg string, pub any) (any, error) {
	switch k := pub.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSA {
			return nil, fmt.Errorf("the RSA key has %d bits; %d are the least", k.N.BitLen(), minRSA)
		}
		if alg == algRS256 {
			return k, nil
		}
	case *ecdsa.PublicKey:
		if alg == algES256 && k.Curve == elliptic.P256() {
			return k, nil
		}
	case ed25519.PublicKey:
		if alg == algEdDSA {
			return k, nil
		}
	}
	return nil, fmt.Errorf("the key does not fit %s", alg)
}
