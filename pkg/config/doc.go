// Package config reads what is fixed when a node starts. One registry of
// sections, made from the structs that the modules decode into, is the source
// of everything: the keys, their types and defaults, the IMD_* variables, the
// example file and the reference table.
//
// Order: defaults, then the file, then IMD_* variables, then flags; the last
// one wins. Nothing is ignored: an unknown key, a key given twice, a value of
// the wrong type, a duration without a unit, an unknown IMD_* variable and a
// file that is not there are errors that name the place and the nearest known
// key.
package config
