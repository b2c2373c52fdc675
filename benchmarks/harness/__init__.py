"""What every benchmark uses: subjects, traffic, interleaved measuring, processes, generated stores."""
