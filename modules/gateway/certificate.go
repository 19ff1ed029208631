package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/reload"
)

// turnWait is how long a TLS handshake may wait for its turn; the rest of
// headerTimeout is for the handshake itself.
const turnWait = 4 * time.Second

// errTurn ends a handshake for which there was no turn.
var errTurn = errors.New("too many handshakes at once")

// certificate reads the files of the public listener's certificate, if TLS is
// wanted. They are read anew when they change.
func (g *Gateway) certificate() error {
	f := g.cfg.TLS
	if f.CertFile == "" {
		return nil
	}
	read := false
	c, err := reload.Read(reload.Source[*tls.Certificate]{
		Paths: []string{f.CertFile, f.KeyFile}, Now: time.Now,
		Load: func() (*tls.Certificate, error) {
			c, err := reload.Certificate(f.CertFile, f.KeyFile, 0o007)
			if err != nil {
				return nil, err
			}
			ends := reload.Ends(c)
			switch over := time.Now().After(ends); {
			case over && read: // the one in force can only be better
				return nil, fmt.Errorf("%s expired on %s", f.CertFile, ends.UTC().Format(time.DateTime))
			case over: // without it not even those who accept that would be served
				g.Log.Error("the certificate of the public listener has expired", zap.Time("expired", ends))
			case read:
				g.Log.Info("a new certificate is in force on the public listener", zap.Time("expires", ends))
			}
			read = true
			return c, nil
		},
		Warn: func(err error) {
			g.Log.Error("the new certificate of the public listener is bad; the last good one stays in force", obs.Err(err))
		},
	})
	if err != nil {
		return &module.ConfigError{Err: fmt.Errorf("gateway.tls: %w", err)}
	}
	g.cert.Store(c)
	return nil
}

// watchCertificate shows when the certificate ends. Whoever reads the metrics looks
// at the files, so a bad renewal is noticed on a node to which nobody comes.
func (m *metrics) watchCertificate(reg prometheus.Registerer, g *Gateway) {
	gauge := func(name, help string, of func(*reload.Value[*tls.Certificate]) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "imd", Subsystem: "gateway", Name: name, Help: help}, func() float64 {
			if c := g.cert.Load(); c != nil {
				return of(c)
			}
			return 0
		}))
	}
	gauge("certificate_expiry_seconds", "When the certificate of the public listener expires, or the first of its chain, in seconds since 1970; 0 = it speaks no TLS.",
		func(c *reload.Value[*tls.Certificate]) float64 { return float64(reload.Ends(c.Get()).Unix()) })
	gauge("certificate_bad", "1 while the files of the certificate have changed into something that cannot be used, and the last good one is in force.",
		func(c *reload.Value[*tls.Certificate]) float64 {
			if _, bad := c.Look(); bad {
				return 1
			}
			return 0
		})
}

// tlsConfig is how the public listener speaks TLS; nil = it does not. WebSockets
// begin as HTTP/1.1, so nothing else is offered.
func (g *Gateway) tlsConfig() *tls.Config {
	c := g.cert.Load()
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate:     func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.Get(), nil },
		GetConfigForClient: g.takeTurn,
	}
}

// takeTurn lets a handshake go on when it is its turn: what is above the rate
// waits, so that those who are here still get their messages. The client has
// spoken by then, so who stays silent takes nobody's turn.
func (g *Gateway) takeTurn(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	wait, ok := g.limits.handshake()
	if !ok {
		g.m.handshakes.WithLabelValues("storm").Inc()
		g.heard(hello.Context()) // or it would be counted again, as one that failed
		return nil, errTurn
	}
	if wait <= 0 {
		return nil, nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil, nil
	case <-hello.Context().Done():
		return nil, hello.Context().Err()
	case <-g.ctx.Done():
		return nil, errTurn
	}
}
