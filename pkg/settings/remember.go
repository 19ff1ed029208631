package settings

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// memory is the file of what is in force. Documents are kept as they are, so
// that a person can read them.
type memory struct {
	Revision int64                   `json:"revision"`
	Sections map[string]memoryRecord `json:"sections"`
}

type memoryRecord struct {
	Version  int64           `json:"version"`
	Mod      int64           `json:"mod"`
	Document json.RawMessage `json:"document"`
}

// Save writes what is in force to a file, which is always whole: a crash leaves
// the old one or the new one.
func Save(path string, r Remembered) error {
	m := memory{Revision: r.Revision, Sections: map[string]memoryRecord{}}
	for _, rec := range r.Records {
		m.Sections[rec.Section] = memoryRecord{rec.Version, rec.Mod, rec.Raw}
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".settings-*")
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	defer os.Remove(tmp.Name()) // gone already if all went well
	_, err = tmp.Write(append(data, '\n'))
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	return nil
}

// Load reads what Save wrote. A missing file is an fs.ErrNotExist.
func Load(path string) (Remembered, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Remembered{}, fmt.Errorf("settings: %w", err)
	}
	var m memory
	if err := json.Unmarshal(data, &m); err != nil {
		return Remembered{}, fmt.Errorf("settings: %s: %w", path, err)
	}
	r := Remembered{Revision: m.Revision}
	for section, rec := range m.Sections {
		r.Records = append(r.Records, Record{Section: section, Version: rec.Version, Mod: rec.Mod, Raw: rec.Document})
	}
	return r, nil
}
