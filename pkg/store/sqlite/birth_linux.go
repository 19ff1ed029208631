package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// birthOf is the birth of an open file, zero if the file system does not keep
// it, and when the file was changed last, in ms since 1970: not by its own
// account, which a copy may keep, but by that of the file system.
func birthOf(f *os.File) (birth, int64) {
	var st unix.Statx_t
	const want = unix.STATX_INO | unix.STATX_CTIME | unix.STATX_BTIME
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, want, &st); err != nil || st.Mask&want != want {
		return birth{}, 0
	}
	return birth{st.Ino, nanos(st.Btime)}, nanos(st.Ctime) / 1e6
}

func nanos(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }
