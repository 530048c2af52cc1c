"""`make bench`: every benchmark, one after the other; results and plots go to results/."""

from benchmarks import faces, head, packing, people, r_w, retrieval, sampled, sharded

faces.main()
head.main([])
packing.main([])
r_w.main()
sampled.main()
sharded.main()
retrieval.main()
people.main()
