// Package lines is what programs of reader_programs.py have in common: their arguments, and the lines that they read and print.
package lines

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Place is a partition, to be read until the record before the offset End has come.
type Place struct {
	Topic     string
	Partition int32
	End       int64
}

// Arguments of either kind of program.
type Arguments struct {
	IsMember, IsCommitted bool
	Bootstrap             string
	FromMs                int64 // -1: from the beginning
	Places                []Place
	Group, Topic          string
	IsServerSide          bool // KIP-848
	Instance              string
}

// Record is one as the expected files have it. Fields that a library does not have are left out.
type Record struct {
	Topic         string   `json:"topic"`
	Partition     int32    `json:"partition"`
	Offset        int64    `json:"offset"`
	Timestamp     int64    `json:"timestamp"`
	TimestampType string   `json:"timestamp_type,omitempty"`
	LeaderEpoch   *int32   `json:"leader_epoch,omitempty"`
	Key           []byte   `json:"key"`
	Value         []byte   `json:"value"`
	Headers       [][2]any `json:"headers"`
}

var printing sync.Mutex

// Parse the command line.
func Parse() Arguments {
	args := os.Args[1:]
	found := Arguments{IsMember: args[0] == "join", Bootstrap: args[1], IsCommitted: args[2] == "read_committed", FromMs: -1}
	if found.IsMember {
		found.Group, found.Topic, found.IsServerSide = args[3], args[4], args[5] == "consumer"
		if len(args) > 6 {
			found.Instance = args[6]
		}
		return found
	}
	if args[3] != "beginning" {
		found.FromMs = Must(strconv.ParseInt(args[3], 10, 64))
	}
	for _, place := range args[4:] {
		parts := strings.Split(place, ":")
		partition := Must(strconv.ParseInt(parts[1], 10, 32))
		found.Places = append(found.Places, Place{parts[0], int32(partition), Must(strconv.ParseInt(parts[2], 10, 64))})
	}
	return found
}

// Requests are how many records to take, as they come; the channel is closed at the end.
func Requests() <-chan int {
	requests := make(chan int)
	go func() {
		defer close(requests)
		for input := bufio.NewScanner(os.Stdin); input.Scan() && input.Text() != "end"; {
			requests <- Must(strconv.Atoi(strings.TrimPrefix(input.Text(), "take ")))
		}
	}()
	return requests
}

// Print a record.
func (r Record) Print() {
	if r.Headers == nil {
		r.Headers = [][2]any{}
	}
	write(r)
}

// PrintPartitions that are assigned.
func PrintPartitions(partitions []int32) {
	sorted := append([]int32{}, partitions...)
	slices.Sort(sorted)
	write(map[string]any{"partitions": sorted})
}

// PrintCommitted once all that was to be taken is.
func PrintCommitted() {
	write(map[string]any{"committed": true})
}

func write(line any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(Must(json.Marshal(line))))
}

// Must end the program when there is an error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Check ends the program when there is an error.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
