// Clients in Go as operators are written, against the API server that KUBECONFIG names. Each prints what it saw, line
// by line, and OK at the end; the tests compare the lines.
package main

import (
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func must(err error) {
	if err != nil {
		fmt.Println("FAILED", err)
		os.Exit(1)
	}
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(err)
	programs := map[string]func(*rest.Config){"client-go": clientGo, "controller-runtime": controllerRuntime}
	program, known := programs[os.Args[len(os.Args)-1]]
	if !known {
		fmt.Println("usage: goclients client-go|controller-runtime")
		os.Exit(2)
	}
	program(config)
	fmt.Println("OK")
}
