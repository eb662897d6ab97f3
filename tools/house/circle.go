package main

// circle counts the files of a package's largest circle. Each of these files names, itself
// or through others of them, a declaration, field or method of each other. Hubs do not count,
// and nothing is reached through them.
var circle = measure{"files in the largest circle", "circle", func(h house, where string) (float64, []string) {
	var largest []string
	for _, r := range h.at(where) {
		if c := r.circle(); len(c) > len(largest) {
			largest = c
		}
	}
	return float64(len(largest)), largest
}}

func (r *room) circle() (largest []string) {
	reaches := r.arrows()
	for a := range reaches {
		if hubs[a.from.name] || hubs[a.to.name] {
			delete(reaches, a)
		}
	}

	for _, over := range r.files {
		for _, from := range r.files {
			for _, to := range r.files {
				if reaches[arrow{from, over}] && reaches[arrow{over, to}] {
					reaches[arrow{from, to}] = true
				}
			}
		}
	}

	for _, a := range r.files {
		var mutual []string
		for _, b := range r.files {
			if reaches[arrow{a, b}] && reaches[arrow{b, a}] {
				mutual = append(mutual, b.name)
			}
		}
		if len(mutual) > len(largest) {
			largest = mutual
		}
	}
	return largest
}

type arrow struct{ from, to *file }

// arrows returns the pairs of files where the first names a declaration of the second.
func (r *room) arrows() map[arrow]bool {
	files := map[string]*file{}
	for _, f := range r.files {
		files[r.set.Position(f.syntax.Package).Filename] = f
	}

	all := map[arrow]bool{}
	for id, used := range r.info.Uses {
		if used.Pkg() == r.types {
			a := arrow{files[r.set.Position(id.Pos()).Filename], files[r.set.Position(used.Pos()).Filename]}
			all[a] = a.from != a.to
		}
	}
	return all
}
