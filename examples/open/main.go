// Open decrypts payment data as a merchant does. It reads the answer of POST
// /tokens/{id}/payment-data, or the JWE in it, and prints the network token and cryptogram:
//
//	printf '%s\n' "$DATA" | PAYMENT_SECRET=… go run ./examples/open
//
// While a payment secret is rotated, PAYMENT_SECRET holds both with a space between them.
// A cryptogram pays once: a real merchant sends it to its acquirer, and stores it nowhere.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cardvault/cardvault/receive"
)

func main() {
	if err := run(os.Getenv("PAYMENT_SECRET"), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "open:", err)
		os.Exit(1)
	}
}

const maxInput = 64 << 10 // bytes: an answer has fewer than 4 KiB

func run(texts string, stdin io.Reader, stdout io.Writer) error {
	var secrets []receive.SharedSecret
	for text := range strings.FieldsSeq(texts) {
		secrets = append(secrets, receive.NewSharedSecret([]byte(text)))
	}
	if len(secrets) == 0 {
		return errors.New("PAYMENT_SECRET is not set")
	}

	input, err := io.ReadAll(io.LimitReader(stdin, maxInput))
	if err != nil {
		return err
	}
	jwe, err := find(bytes.TrimSpace(input))
	if err != nil {
		return err
	}

	c, err := receive.OpenPaymentData(jwe, secrets...)
	if err != nil {
		return err
	}
	defer c.Wipe()
	return show(stdout, c)
}

// find returns the JWE of an answer.
func find(input []byte) (string, error) {
	if !bytes.HasPrefix(input, []byte("{")) {
		return string(input), nil
	}

	var answer struct {
		JWE      string `json:"encrypted_authentication_data"`
		Message  string `json:"message"` // of an error
		Failures []struct {
			Message string `json:"message"`
		} `json:"failure_details"`
	}
	err := json.Unmarshal(input, &answer)
	switch {
	case err != nil:
		return "", errors.New("standard input holds no payment data")
	case answer.JWE != "":
		return answer.JWE, nil
	case len(answer.Failures) > 0:
		return "", fmt.Errorf("there is no cryptogram: %s", answer.Failures[0].Message)
	case answer.Message != "":
		return "", fmt.Errorf("there is no payment data: %s", answer.Message)
	}
	return "", errors.New("there is no cryptogram: it may have expired")
}

// show prints a credential in the form in which it was encrypted.
func show(w io.Writer, c *receive.Credential) (err error) {
	eci := []byte("null")
	if c.ECI != "" {
		eci, err = json.Marshal(c.ECI)
	}
	if err != nil {
		return err
	}

	c.Number.Expose(func(number []byte) {
		c.Cryptogram.Expose(func(cryptogram []byte) {
			_, err = fmt.Fprintf(w, `{"network_token":{"token":"%s","expiry_year":%d,"expiry_month":%d},"cryptogram":"%s","eci":%s}`+"\n",
				number, c.Expiry.Year, c.Expiry.Month, cryptogram, eci)
		})
	})
	return err
}
