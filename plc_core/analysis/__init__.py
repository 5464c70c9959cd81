"""What a run's files say, without torch: it knows `runs` and `data`.

statistics       tests, intervals and how they read
audit            tables of where the pairs were routed; `calibration` of any forecast, `noise` the
                 estimated noise rate
curves           running means over optimizer steps, and where a run ended up
routing          the paper's routing studies
figures          pictures that notebooks and app share
paper            the published numbers
"""
