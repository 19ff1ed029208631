// Package hostile feeds a running node what no honest client would, and ends
// connections in every way they can end.
package hostile
