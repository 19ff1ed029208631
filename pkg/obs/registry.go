package obs

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewRegistry makes the registry of one node, with the collectors of the Go
// runtime and of the process, and imd_build_info.
func NewRegistry(b Build) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "imd", Name: "build_info", Help: "Always 1; the labels say what binary runs.",
	}, []string{"version", "commit", "go"})
	info.WithLabelValues(b.Version, b.Commit, b.Go).Set(1)
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// metricsHandler serves the registry. A collector that fails does not hide the
// others.
func metricsHandler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4})
}
