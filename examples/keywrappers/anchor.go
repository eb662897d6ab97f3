package keywrappers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/cardvault/cardvault"
)

// anchorTag is the name of the tag that has the anchor of a vault.
const anchorTag = "cardvault-anchor"

// mostTags is more pages of tags than a key can have.
const mostTags = 10

// A Tagger is a client of AWS KMS that may list and set the tags of a key, such as the AWS SDK's.
type Tagger interface {
	ListResourceTags(context.Context, *kms.ListResourceTagsInput, ...func(*kms.Options)) (*kms.ListResourceTagsOutput, error)
	TagResource(context.Context, *kms.TagResourceInput, ...func(*kms.Options)) (*kms.TagResourceOutput, error)
}

// AWSAnchor keeps the anchor of a vault in a tag of a key of AWS KMS, which the operator of the
// store should not be allowed to tag. No condition can be put on a change of a tag, so one process
// alone may use it. KMS may show a tag late: a process that opens the vault within these seconds may
// not notice a rollback, or refuse a vault that is right until the tag is there.
func AWSAnchor(client Tagger, key string) cardvault.Anchor {
	return &awsAnchor{client: client, key: key}
}

type awsAnchor struct {
	client Tagger
	key    string

	mu     sync.Mutex
	number uint64 // that this process has written last
	text   []byte
}

func (a *awsAnchor) Load(ctx context.Context) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	number, text, err := a.stored(ctx)
	if err == nil && number < a.number {
		text = bytes.Clone(a.text)
	}
	return text, err
}

func (a *awsAnchor) Advance(ctx context.Context, number uint64, text []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	stored, _, err := a.stored(ctx)
	if err != nil || number <= max(stored, a.number) {
		return err
	}

	// A value has up to 256 characters: enough for the text and a number of 15 digits.
	value := fmt.Sprintf("%d %s", number, text)
	_, err = a.client.TagResource(ctx, &kms.TagResourceInput{KeyId: &a.key, Tags: []types.Tag{{TagKey: aws.String(anchorTag), TagValue: &value}}})
	if err == nil {
		a.number, a.text = number, bytes.Clone(text)
	}
	return err
}

// stored returns what the tag has, zero if there is none.
func (a *awsAnchor) stored(ctx context.Context) (number uint64, text []byte, err error) {
	in := &kms.ListResourceTagsInput{KeyId: &a.key}
	for range mostTags {
		page, err := a.client.ListResourceTags(ctx, in)
		if err != nil {
			return 0, nil, err
		}

		for _, tag := range page.Tags {
			if aws.ToString(tag.TagKey) != anchorTag {
				continue
			}
			before, after, is := strings.Cut(aws.ToString(tag.TagValue), " ")
			number, err = strconv.ParseUint(before, 10, 64)
			if !is || err != nil {
				return 0, nil, errors.New("the tag of the anchor is damaged")
			}
			return number, []byte(after), nil
		}
		if !page.Truncated {
			return 0, nil, nil
		}
		in.Marker = page.NextMarker
	}
	return 0, nil, errors.New("the key has too many tags")
}
