package presence

import (
	"slices"

	"github.com/imdhq/imd/pkg/im"
)

// Mask is a set of device classes. The zero Mask is empty.
type Mask uint8

// classes is how many classes there are.
const classes = 5

var names = im.Classes()

// MaskOf is the set of some classes; one that is no class is left out.
func MaskOf(list ...im.Class) Mask {
	var m Mask
	for _, c := range list {
		if i := slices.Index(names, c); i >= 0 {
			m |= 1 << i
		}
	}
	return m
}

// Classes lists what is in the set, in the order of im.Classes.
func (m Mask) Classes() []im.Class {
	var out []im.Class
	for i, c := range names {
		if m&(1<<i) != 0 {
			out = append(out, c)
		}
	}
	return out
}
