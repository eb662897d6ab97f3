// Package floorplan holds no code: its test asserts who may import whom.
package floorplan
