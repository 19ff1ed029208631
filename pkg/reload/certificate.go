package reload

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Certificate reads a certificate with its chain, and its key, from PEM files.
// others are the permissions that the file of the key may not have. Errors: a
// file cannot be read, the key has such permissions, or the two do not belong
// together.
func Certificate(cert, key string, others fs.FileMode) (*tls.Certificate, error) {
	info, err := os.Stat(key)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&others != 0 {
		return nil, fmt.Errorf("%s can be read by others; chmod %o it", key, 0o600|0o640&^others)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", cert, key, err)
	}
	return &pair, nil
}

// Ends is when a certificate, or the first of those that it is shown with,
// expires. What cannot be parsed is passed over.
func Ends(c *tls.Certificate) time.Time {
	ends := c.Leaf.NotAfter
	for _, der := range c.Certificate[1:] {
		if between, err := x509.ParseCertificate(der); err == nil && between.NotAfter.Before(ends) {
			ends = between.NotAfter
		}
	}
	return ends
}
