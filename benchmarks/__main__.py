"""`make bench`: every benchmark, one after the other; results and plots go to results/."""

from benchmarks import head, packing, r_w, sampled, sharded

head.main([])
packing.main()
r_w.main()
sampled.main()
sharded.main()
