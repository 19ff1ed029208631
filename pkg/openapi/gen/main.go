// Command gen reads the image that `buf build --as-file-descriptor-set -o -`
// writes and prints the OpenAPI document of the public API.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/imdhq/imd/pkg/openapi"
)

func main() {
	image, err := io.ReadAll(os.Stdin)
	if err == nil {
		var doc []byte
		if doc, err = openapi.FromImage(image); err == nil {
			_, err = os.Stdout.Write(doc)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
