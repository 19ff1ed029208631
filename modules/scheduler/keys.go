package scheduler

import (
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/webhook"
)

// keyLook is how often a file of keys is looked at.
const keyLook = time.Second

// keyFile is a file of keys that may change. Safe for concurrent use.
type keyFile struct {
	path string
	log  *zap.Logger

	mu     sync.Mutex
	keys   []webhook.Key
	stamp  string
	looked time.Time
}

// openKeys reads the file once, so that a bad one fails the start.
func openKeys(path string, log *zap.Logger) (*keyFile, error) {
	keys, err := webhook.ReadKeys(path)
	if err != nil {
		return nil, err
	}
	return &keyFile{path: path, log: log, keys: keys, stamp: stampOf(path), looked: time.Now()}, nil
}

func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}

// now is the keys as they are; a file that cannot be read changes nothing.
func (k *keyFile) now() []webhook.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if now.Sub(k.looked) < keyLook {
		return k.keys
	}
	k.looked = now
	stamp := stampOf(k.path)
	if stamp == k.stamp {
		return k.keys
	}
	k.stamp = stamp
	keys, err := webhook.ReadKeys(k.path)
	if err != nil {
		k.log.Warn("a file of keys cannot be read; the former keys stay", zap.String("file", k.path), obs.Err(err))
		return k.keys
	}
	k.keys = keys
	return keys
}
