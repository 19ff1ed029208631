package seal

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/reload"
)

// Files names the PEM files of a node.
type Files struct {
	CA   string // certificates that sign those of the nodes
	Cert string // of this node
	Key  string
}

// pair is what the files say.
type pair struct {
	roots *x509.CertPool
	cert  *tls.Certificate
}

// Certs is the certificate of a node and whom it trusts. Safe for concurrent
// use.
type Certs struct {
	cluster string
	files   *reload.Value[*pair]
	now     func() time.Time
}

// Load reads the files. They are read anew when they change; bad ones leave the
// last good ones in force and are reported to warn. Errors: they cannot be read,
// others can read the key, or the certificate names no role of the cluster.
func Load(f Files, cluster string, now func() time.Time, warn func(error)) (*Certs, error) {
	files, err := reload.Read(reload.Source[*pair]{
		Paths: []string{f.CA, f.Cert, f.Key}, Now: now, Warn: warn, Load: func() (*pair, error) { return readPair(f, cluster) },
	})
	if err != nil {
		return nil, err
	}
	return &Certs{cluster: cluster, files: files, now: now}, nil
}

func readPair(f Files, cluster string) (*pair, error) {
	cert, err := reload.Certificate(f.Cert, f.Key, 0o077)
	if err != nil {
		return nil, err
	}
	if len(rolesOf(cert.Leaf, cluster)) == 0 {
		return nil, fmt.Errorf("%s names no role; it needs a URI such as imd://%s/role/state for each role of the node", f.Cert, cluster)
	}
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, err
	}
	p := &pair{roots: x509.NewCertPool(), cert: cert}
	if !p.roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificates", f.CA)
	}
	return p, nil
}

// rolesOf lists the roles that a certificate names for the cluster.
func rolesOf(c *x509.Certificate, cluster string) []string {
	var out []string
	for _, u := range c.URIs {
		if role, ok := strings.CutPrefix(u.Path, "/role/"); ok && u.Scheme == "imd" && u.Host == cluster && role != "" {
			out = append(out, role)
		}
	}
	return out
}

// RoleURI is what a certificate carries for a role.
func RoleURI(cluster, role string) *url.URL {
	return &url.URL{Scheme: "imd", Host: cluster, Path: "/role/" + role}
}

// Roles lists the roles that the certificate of this node names.
func (c *Certs) Roles() []string { return rolesOf(c.files.Get().cert.Leaf, c.cluster) }

// verify checks the chain of the other side and that it belongs to the cluster.
// Names of hosts do not count: nodes move.
func (c *Certs) verify(cs tls.ConnectionState, usage x509.ExtKeyUsage) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("seal: no certificate was shown")
	}
	between := x509.NewCertPool()
	for _, x := range cs.PeerCertificates[1:] {
		between.AddCert(x)
	}
	leaf := cs.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: c.files.Get().roots, Intermediates: between, CurrentTime: c.now(), KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return err
	}
	if len(rolesOf(leaf, c.cluster)) == 0 {
		return fmt.Errorf("seal: the certificate of %q names no role of the cluster %s", leaf.Subject.CommonName, c.cluster)
	}
	return nil
}

// Server is for a listener. The certificates of callers are checked in the
// handshake, and their roles by Allowed.
func (c *Certs) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}, ClientAuth: tls.RequireAnyClientCert,
		SessionTicketsDisabled: true, // a resumed session would not see new files
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.files.Get().cert, nil },
		VerifyConnection:       func(cs tls.ConnectionState) error { return c.verify(cs, x509.ExtKeyUsageClientAuth) },
	}
}

// Client is for calls to other nodes.
func (c *Certs) Client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify:   true, // VerifyConnection does it, without host names
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.files.Get().cert, nil },
		VerifyConnection:     func(cs tls.ConnectionState) error { return c.verify(cs, x509.ExtKeyUsageServerAuth) },
	}
}

// callers says which roles call which service, and a method that differs.
var callers = map[string][]string{
	"/imd.internal.v1.StateService/":        {"gateway", "push", "scheduler"},
	"/imd.internal.v1.StateService/Submit":  {"gateway", "scheduler"},
	"/imd.internal.v1.StateService/Members": {"gateway", "push", "scheduler"},
	"/imd.internal.v1.DirectoryService/":    {"gateway", "state", "push", "scheduler"},
	"/imd.internal.v1.PushService/":         {"state", "scheduler"},
	"/imd.internal.v1.GatewayService/":      {"gateway", "state", "push", "scheduler"},
	"/imd.internal.v1.PeerService/":         {"gateway", "state", "push", "scheduler"},
}

// Callers lists the roles that may call a procedure; none = nobody may.
func Callers(procedure string) []string {
	if roles, ok := callers[procedure]; ok {
		return roles
	}
	return callers[procedure[:strings.LastIndexByte(procedure, '/')+1]]
}

// The reasons of refusals.
const (
	errNoCertificate = ErrProof("a certificate of the cluster is needed")
	errRoles         = ErrProof("the roles of the caller's certificate may not call this")
)

// Allowed checks that the certificate of the caller names a role that may call
// the procedure. Errors: an ErrProof.
func (c *Certs) Allowed(r *http.Request) error { return c.May(r.TLS, r.URL.Path) }

// May is Allowed for a caller that shows its certificates in another way than by
// a request.
func (c *Certs) May(shown *tls.ConnectionState, procedure string) error {
	if shown == nil || len(shown.PeerCertificates) == 0 {
		return errNoCertificate
	}
	may := Callers(procedure)
	for _, role := range rolesOf(shown.PeerCertificates[0], c.cluster) {
		if slices.Contains(may, role) {
			return nil
		}
	}
	return errRoles
}
